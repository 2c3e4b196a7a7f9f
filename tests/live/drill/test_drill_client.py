"""Clients with a list of endpoints, against real HTTP servers that answer, break, refuse, or are gone."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable

import aiohttp
import pytest
from aiohttp import web

from tests.live.drill.client import REGION_HEADER, RegionClients, RegionEndpoint, drill_session
from tests.live.drill.record import SendEnd

TOKENS = 5
Serve = Callable[[web.Request], Awaitable[web.StreamResponse]]


def event(text: str, answer_id: str = "a") -> bytes:
    return b'data: {"id":"%s","choices":[{"index":0,"text":"%s"}]}\n\n' % (answer_id.encode(), text.encode())


def usage(tokens: int) -> bytes:
    return b'data: {"id":"a","choices":[],"usage":{"prompt_tokens":3,"completion_tokens":%d}}\n\n' % tokens


def answering(cell: str, tokens: int = TOKENS, ids: tuple[str, ...] = ("a",), ends: int = 1) -> Serve:
    """A whole answer, in pieces."""

    async def serve(request: web.Request) -> web.StreamResponse:
        await request.read()
        response = web.StreamResponse(headers={REGION_HEADER: cell})
        await response.prepare(request)
        for number in range(tokens):
            await response.write(event(f"t{number}", ids[number * len(ids) // tokens]))
        await response.write(usage(tokens) + b"data: [DONE]\n\n" * ends)
        return response

    return serve


STATUSES = {"rejected": 503, "limited": 429}


def failing(how: str) -> Serve:
    """An answer that ends otherwise, after a token where it is a stream."""

    async def serve(request: web.Request) -> web.StreamResponse:
        await request.read()
        if how in STATUSES:
            return web.json_response({"error": {"message": "full", "code": how}}, status=STATUSES[how])
        if how == "broken early":
            assert request.transport is not None
            request.transport.abort()
            return web.Response()
        response = web.StreamResponse(headers={REGION_HEADER: "eu"})
        await response.prepare(request)
        await response.write(event("t0"))
        if how == "error_event":
            await response.write(b'data: {"error":{"message":"lost","code":"replica_lost"}}\n\ndata: [DONE]\n\n')
            return response
        await asyncio.sleep(0.05)
        assert request.transport is not None
        request.transport.abort()
        return response

    return serve


Servers = Callable[..., Awaitable[list[RegionEndpoint]]]


@pytest.fixture
async def servers() -> AsyncIterator[Servers]:
    """Starts a server for each cell, which may be None: then nobody listens."""
    runners = []

    async def start(**cells: Serve | None) -> list[RegionEndpoint]:
        found = []
        for cell, serve in cells.items():
            app = web.Application()
            app.router.add_post("/v1/completions", serve or answering(cell))
            runner = web.AppRunner(app)
            await runner.setup()
            site = web.TCPSite(runner, "127.0.0.1", 0)
            await site.start()
            port = runner.addresses[0][1]
            runners.append(runner)
            if serve is None:
                await runner.cleanup()
            found.append(RegionEndpoint(cell, f"http://127.0.0.1:{port}"))
        return found

    yield start
    for runner in runners:
        await runner.cleanup()


@pytest.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    async with drill_session() as made:
        yield made


async def test_a_whole_answer_is_one_entry(servers: Servers, session: aiohttp.ClientSession) -> None:
    clients = RegionClients(session, await servers(eu=answering("us"), us=None), time.monotonic(), 5.0)
    (sent,) = await clients.ask(b"{}", TOKENS, "r")
    assert (sent.home, sent.asked, sent.served, sent.end) == ("eu", "eu", "us", SendEnd.ANSWERED)
    assert sent.ttft_s is not None
    assert sent.finished_s is not None
    assert (sent.again, sent.twice) == (False, False)


async def test_a_cell_that_is_gone_is_asked_last_for_a_while(servers: Servers, session: aiohttp.ClientSession) -> None:
    asked = 0

    async def counting(request: web.Request) -> web.StreamResponse:
        nonlocal asked
        asked += 1
        return await failing("rejected")(request)

    endpoints = await servers(eu=counting, us=answering("us"))
    clients = RegionClients(session, endpoints, time.monotonic(), 5.0)
    for _ in range(3):
        (sent,) = await clients.ask(b"{}", TOKENS, "r")
        assert (sent.home, sent.asked, sent.served, sent.end) == ("eu", "us", "us", SendEnd.ANSWERED)
    assert asked == 1, "this client knows"
    await clients.ask(b"{}", TOKENS, "r", client=1)
    assert asked == 2, "another one has a list of its own"


@pytest.mark.parametrize("how", ["reset", "error_event"])
async def test_a_broken_answer_is_asked_for_again(servers: Servers, session: aiohttp.ClientSession, how: str) -> None:
    broken, whole = failing(how), answering("eu")
    asked = 0

    async def first_breaks(request: web.Request) -> web.StreamResponse:
        nonlocal asked
        asked += 1
        return await (broken if asked == 1 else whole)(request)

    clients = RegionClients(session, await servers(eu=first_breaks, us=answering("us")), time.monotonic(), 5.0)
    first, second = await clients.ask(b"{}", TOKENS, "r")
    assert (first.end, first.finished_s, first.served, first.again) == (SendEnd(how), None, None, False)
    assert first.ttft_s is not None, "it had begun"
    assert (second.end, second.again) == (SendEnd.ANSWERED, True)
    assert second.sent_s > first.sent_s


@pytest.mark.parametrize("how", ["rejected", "broken early", None])
async def test_who_does_not_answer_is_followed_by_the_next(
    servers: Servers, session: aiohttp.ClientSession, how: str | None
) -> None:
    endpoints = await servers(eu=how and failing(how), us=answering("us"))
    clients = RegionClients(session, endpoints, time.monotonic(), 5.0)
    (sent,) = await clients.ask(b"{}", TOKENS, "r")
    assert (sent.home, sent.asked, sent.served, sent.end) == ("eu", "us", "us", SendEnd.ANSWERED)


@pytest.mark.parametrize(("how", "asked"), [("limited", "eu"), ("rejected", "us")])
async def test_a_tenants_limit_is_final_and_so_is_the_last_rejection(
    servers: Servers, session: aiohttp.ClientSession, how: str, asked: str
) -> None:
    endpoints = await servers(eu=failing(how), us=failing("rejected"))
    clients = RegionClients(session, endpoints, time.monotonic(), 5.0)
    (sent,) = await clients.ask(b"{}", TOKENS, "r")
    assert (sent.asked, sent.end, sent.served, sent.ttft_s) == (asked, SendEnd.REJECTED, None, None)


async def test_nobody_answers(servers: Servers, session: aiohttp.ClientSession) -> None:
    clients = RegionClients(session, await servers(eu=None, us=None), time.monotonic(), 0.5)
    (sent,) = await clients.ask(b"{}", TOKENS, "r")
    assert (sent.end, sent.asked) == (SendEnd.UNANSWERED, None)


@pytest.mark.parametrize(
    "wrong",
    [{"tokens": TOKENS + 1}, {"ids": ("a", "b")}, {"ends": 2}],
    ids=["more tokens", "two answers", "two ends"],
)
async def test_what_came_twice_is_noticed(
    servers: Servers, session: aiohttp.ClientSession, wrong: dict[str, object]
) -> None:
    serve = answering("eu", **wrong)  # type: ignore[arg-type]
    clients = RegionClients(session, await servers(eu=serve, us=None), time.monotonic(), 5.0)
    (sent,) = await clients.ask(b"{}", TOKENS, "r")
    assert sent.twice
