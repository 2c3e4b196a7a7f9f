"""The replica's front door, over real HTTP."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest

from deployments.engine.exchanges import Exchanges, SequenceStats, current
from deployments.engine.feed import Feed
from deployments.engine.guard import Guard
from deployments.http.server import HttpServer
from deployments.protocol import (
    BOOKING_HEADER,
    CLAIM_PATH,
    DRAIN_PATH,
    DRAINING_CODE,
    DUPLICATE_CODE,
    ENGINE_DIED_CODE,
    ENGINE_DIED_HEADER,
    EPOCH_HEADER,
    ERROR_EVENT,
    FEED_PATH,
    NAMED_ERROR_EVENT,
    REQUEST_ID_HEADER,
    STALE_EPOCH_CODE,
    UNHEALTHY_CODE,
    DrainReason,
    Finished,
    Hello,
    Load,
    ReplicaFacts,
    ReplicaState,
    decode,
)

SECRET = "s3cret"
FACTS = ReplicaFacts("r", "m", "http://127.0.0.1:1", 1, "n", "generate", 4096, 8, 2048, 65_536)


class Behind:
    """An app behind the guard: it says what it was given, and finishes one sequence when `go` is set."""

    def __init__(self) -> None:
        self.state = ReplicaState.READY
        self.go = asyncio.Event()
        self.go.set()
        self.reports: asyncio.Queue[Finished] = asyncio.Queue()
        self.books = Exchanges(self.reports.put_nowait, lambda first: None)
        load = Load(ReplicaState.READY, 0, 0, 0, 0.0)
        self.feed = Feed(lambda: Hello(FACTS, self.state), lambda: load)
        self.guard = Guard(self, SECRET, self.books, self.feed, lambda: self.state, self.drain)

    def drain(self, reason: DrainReason) -> None:
        self.state = ReplicaState.DRAINING
        self.reason = reason

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        headers = [name.decode() for name, _ in scope["headers"]]
        if current.get() is not None:
            self.books.accept("engine-id", 1)
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": json.dumps(headers).encode(), "more_body": True})
        gone = asyncio.create_task(until_gone(receive))
        go = asyncio.create_task(self.go.wait())
        await asyncio.wait([gone, go], return_when=asyncio.FIRST_COMPLETED)
        if go.done():
            self.books.record("engine-id", SequenceStats(4, 0, 2, 0, 0.0, 0.0, 0.0))
            await send({"type": "http.response.body", "body": b"!"})
        gone.cancel()
        go.cancel()


async def until_gone(receive: Any) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


@pytest.fixture
async def behind() -> Behind:
    return Behind()


@pytest.fixture
async def session(behind: Behind) -> AsyncIterator[aiohttp.ClientSession]:
    server = HttpServer(behind.guard, "127.0.0.1", 0, keep_alive_s=5)
    await server.start()
    headers = {"Authorization": f"Bearer {SECRET}"}
    async with aiohttp.ClientSession(
        f"http://127.0.0.1:{server.port}", headers=headers, timeout=aiohttp.ClientTimeout(total=20)
    ) as session:
        yield session
    behind.go.set()
    behind.feed.close()
    await server.stop(2)


@pytest.mark.parametrize("path", ["/", "/metrics", "/docs", "/v1/completions", FEED_PATH, DRAIN_PATH, CLAIM_PATH])
@pytest.mark.parametrize(
    "given",
    [None, "Bearer wrong", "bearer s3cret", f"Bearer {SECRET}x", "Basic s3cret", "Bearer ", f"Bearer {SECRET}, x"],
)
async def test_without_the_secret_every_path_is_closed(
    behind: Behind, session: aiohttp.ClientSession, path: str, given: str | None
) -> None:
    headers = {} if given is None else {"Authorization": given}
    async with aiohttp.ClientSession(session._base_url) as stranger, stranger.post(path, headers=headers) as response:
        assert response.status == 401
        error = (await response.json())["error"]
        assert error["code"] == "invalid_secret"
        assert set(error) == {"message", "type", "param", "code"}
    assert behind.state is ReplicaState.READY


async def test_the_secret_goes_no_further(session: aiohttp.ClientSession) -> None:
    async with session.post("/v1/completions") as response:
        assert "authorization" not in await response.text()


async def test_work_is_booked_with_its_tokens(behind: Behind, session: aiohttp.ClientSession) -> None:
    async with session.post("/v1/completions", headers={"X-Request-Id": "mine"}) as response:
        await response.read()
    report = await behind.reports.get()
    assert (report.request_id, report.status, report.sequences, report.output_tokens) == ("mine", 200, 1, 2)
    assert report.first_byte_s is not None
    assert 0 <= report.first_byte_s <= report.wall_s


async def test_reading_is_not_booked(behind: Behind, session: aiohttp.ClientSession) -> None:
    async with session.get("/metrics") as response:
        assert response.status == 200
    assert behind.reports.empty()
    assert behind.books.idle


async def test_a_client_that_leaves_is_reported_without_statistics(
    behind: Behind, session: aiohttp.ClientSession
) -> None:
    behind.go.clear()
    async with session.post("/v1/completions", headers={"X-Request-Id": "left"}) as response:
        await response.content.readany()
        response.close()
    report = await asyncio.wait_for(behind.reports.get(), 5)
    assert (report.request_id, report.status, report.sequences) == ("left", 200, 0)
    assert behind.books.idle


async def test_draining_refuses_new_work_and_lets_the_old_end(behind: Behind, session: aiohttp.ClientSession) -> None:
    behind.go.clear()
    async with session.post("/v1/completions") as running:
        await running.content.readany()
        async with session.get(DRAIN_PATH) as response:
            assert response.status == 405
        for body in (b"{", b"[]", b'{"reason": "boredom"}', b"{}"):
            async with session.post(DRAIN_PATH, data=body) as response:
                assert response.status == 400
        assert behind.state is ReplicaState.READY
        async with session.post(DRAIN_PATH) as response:
            assert (response.status, (await response.json())["exchanges"]) == (202, 1)
        assert behind.reason is DrainReason.OPERATOR
        async with session.post(DRAIN_PATH, json={"reason": "spot_notice"}) as response:
            assert (response.status, (await response.json())["reason"]) == (202, "spot_notice")
        assert behind.reason is DrainReason.SPOT_NOTICE
        async with session.post("/v1/completions") as response:
            assert response.status == 503
            assert (await response.json())["error"]["code"] == DRAINING_CODE
        async with session.get("/metrics") as response:
            assert response.status == 200
        behind.go.set()
        assert (await running.read()).endswith(b"!")


async def test_an_unhealthy_replica_refuses_work_by_another_code(
    behind: Behind, session: aiohttp.ClientSession
) -> None:
    behind.state = ReplicaState.UNHEALTHY
    async with session.post("/v1/completions") as response:
        assert (response.status, (await response.json())["error"]["code"]) == (503, UNHEALTHY_CODE)
    assert behind.reports.empty()


async def test_the_feed_flows_until_it_is_closed(behind: Behind, session: aiohttp.ClientSession) -> None:
    async with session.get(FEED_PATH) as response:
        assert response.headers["content-type"] == "application/x-ndjson"
        assert isinstance(decode(await response.content.readline()), Hello)
        assert isinstance(decode(await response.content.readline()), Load)
        finished = Finished("id", 200, 1, 5, 0, 3, 0, 0.0, 0.1, 0.2, 0.1, 0.3)
        behind.feed.tell(finished)
        assert decode(await response.content.readline()) == finished
        behind.feed.tell(finished)
        behind.feed.close()
        assert decode(await response.content.readline()) == finished
        assert isinstance(decode(await response.content.readline()), Load)  # the last word tells why it ends
        assert await response.content.read() == b""


async def test_a_feed_that_nobody_reads_is_hung_up(behind: Behind, session: aiohttp.ClientSession) -> None:
    async with session.get(FEED_PATH, read_bufsize=1_024) as response:
        await response.content.readline()
        finished = Finished("x" * 4_096, 200, 1, 5, 0, 3, 0, 0.0, 0.1, 0.2, 0.1, 0.3)
        async with asyncio.timeout(20):
            while behind.feed.subscribers:
                behind.feed.tell(finished)
                await asyncio.sleep(0)


async def code_of(response: aiohttp.ClientResponse) -> tuple[int, str | None]:
    """Status and error code."""
    body = json.loads(await response.read())
    return response.status, body["error"]["code"] if isinstance(body, dict) and "error" in body else None


async def test_an_overtaken_epoch_gets_no_work_done(behind: Behind, session: aiohttp.ClientSession) -> None:
    for epoch, status in ((1, 200), (3, 200), (2, 409), (3, 200), (0, 409), (4, 200)):
        async with session.post("/v1/completions", headers={EPOCH_HEADER: str(epoch)}) as response:
            await response.read()
            assert response.status == status, epoch
    async with session.post("/v1/completions", headers={EPOCH_HEADER: "3"}) as response:
        assert await code_of(response) == (409, STALE_EPOCH_CODE)
    async with session.post("/v1/completions") as response:
        assert await code_of(response) == (409, STALE_EPOCH_CODE)
    async with session.post("/tokenize") as response:
        assert response.status == 200
        await response.read()
    async with asyncio.timeout(20):
        for _ in range(5):  # what was not refused: four completions and the tokens
            await behind.reports.get()


async def test_a_live_request_id_is_refused_and_a_dead_one_is_not(
    behind: Behind, session: aiohttp.ClientSession
) -> None:
    behind.go.clear()
    named = {REQUEST_ID_HEADER: "one"}
    async with session.post("/v1/completions", headers=named) as first:
        await first.content.readany()
        async with session.post("/v1/completions", headers=named) as second:
            assert await code_of(second) == (409, DUPLICATE_CODE)
        assert len(behind.books) == 1
        behind.go.set()
        await first.read()
    await behind.reports.get()
    async with session.post("/v1/completions", headers=named) as third:
        assert third.status == 200


async def test_a_claim_tells_what_runs_and_shuts_out_the_owner_before(
    behind: Behind, session: aiohttp.ClientSession
) -> None:
    behind.go.clear()
    async with session.post(
        "/v1/completions", headers={REQUEST_ID_HEADER: "one", EPOCH_HEADER: "5", BOOKING_HEADER: "10,20,1"}
    ) as running:
        await running.content.readany()
        async with session.post(CLAIM_PATH, json={"epoch": 6}) as claim:
            assert await claim.json() == {
                "epoch": 6,
                "running": [{"request_id": "one", "booking": "10,20,1", "started": True}],
            }
        async with session.post(CLAIM_PATH, json={"epoch": 5}) as claim:
            assert await code_of(claim) == (409, STALE_EPOCH_CODE)
        async with session.post("/v1/completions", headers={EPOCH_HEADER: "5"}) as late:
            assert await code_of(late) == (409, STALE_EPOCH_CODE)
        behind.go.set()
        assert (await running.read()).endswith(b"!"), "what ran before goes on"


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b'{"epoch": 0}', b'{"epoch": "7"}', b'{"epoch": true}', b'{"epoch": 7}' + b" " * 10_000]
)
async def test_a_claim_that_is_none(session: aiohttp.ClientSession, body: bytes) -> None:
    async with session.post(CLAIM_PATH, data=body) as response:
        assert response.status == 400
    async with session.get(CLAIM_PATH) as response:
        assert response.status == 405


async def through(behind: Behind, app: Any) -> list[Any]:
    """What a gateway's request gets from the guard with that app behind it."""
    behind.guard._app = app
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    headers = [(b"authorization", f"Bearer {SECRET}".encode()), (b"x-raylane-epoch", b"1")]
    await behind.guard({"path": "/v1/completions", "method": "POST", "headers": headers}, None, send)  # type: ignore[arg-type]
    return sent


@pytest.mark.parametrize(
    ("state", "status", "body", "marked"),
    [
        (ReplicaState.UNHEALTHY, 500, b"{}", True),
        (ReplicaState.UNHEALTHY, 200, b'data: {"error": {"code": 500}}\n\n', True),
        (ReplicaState.UNHEALTHY, 200, b'event: error\ndata: {"type": "error"}\n\n', True),
        (ReplicaState.UNHEALTHY, 200, b'data: {"choices": []}\n\n', False),
        (ReplicaState.UNHEALTHY, 400, b"{}", False),
        (ReplicaState.READY, 500, b"{}", False),
        (ReplicaState.DRAINING, 500, b"{}", False),
    ],
)
async def test_an_error_of_a_dead_engine_is_marked_as_such(
    state: ReplicaState, status: int, body: bytes, marked: bool
) -> None:
    behind = Behind()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": status, "headers": [(b"content-type", b"text/plain")]})
        behind.state = state
        await send({"type": "http.response.body", "body": body, "more_body": True})
        await send({"type": "http.response.body", "body": b"rest"})

    sent = await through(behind, app)
    assert [message["type"].rpartition(".")[2] for message in sent] == ["start", "body", "body"]
    assert (sent[0]["status"], sent[1]["body"] + sent[2]["body"]) == (status, body + b"rest")
    assert ((ENGINE_DIED_HEADER.encode(), b"true") in sent[0]["headers"]) is marked


@pytest.mark.parametrize("state", ReplicaState)
@pytest.mark.parametrize(
    "reported",
    [b'data: {"error": {"message": "EngineCore", "code": 500}}\n\n', b'event: error\ndata: {"type":"error"}\n\n'],
)
async def test_an_engine_that_dies_within_a_stream_is_told_in_our_words(reported: bytes, state: ReplicaState) -> None:
    behind = Behind()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b'data: {"choices": []}\n\n', "more_body": True})
        behind.state = state
        await send({"type": "http.response.body", "body": reported, "more_body": True})
        await send({"type": "http.response.body", "body": b"data: [DONE]\n\n"})

    sent = await through(behind, app)
    first, second, last = [message["body"] for message in sent[1:]]
    assert (first, last) == (b'data: {"choices": []}\n\n', b"data: [DONE]\n\n")
    if state is ReplicaState.UNHEALTHY:
        named = NAMED_ERROR_EVENT if reported.startswith(NAMED_ERROR_EVENT) else b""
        assert second.startswith(named + ERROR_EVENT)
        assert second.endswith(b"\n\n")
        assert json.loads(second.removeprefix(named).removeprefix(b"data: "))["error"]["code"] == ENGINE_DIED_CODE
    else:
        assert second == reported
