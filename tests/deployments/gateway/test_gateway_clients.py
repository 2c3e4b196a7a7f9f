"""Clients of all manners: those who leave, who speak odd HTTP, who send too much."""

import asyncio
import itertools
import json
import random
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from deployments.http import protocol as http_protocol
from deployments.telemetry.ledger import RequestOutcome
from tests.deployments.gateway.fake_engine import DONE, FakeEngine, event, pieces, waiting
from tests.deployments.gateway.rig import ASK, CREDENTIALS, Rig, head, openai_error, until

MakeRig = Callable[..., Awaitable[Rig]]
STREAM = {**ASK, "stream": True}


async def test_leaving_in_the_lane(make_rig: MakeRig) -> None:
    rig = await make_rig(engines=0)
    clients = [await rig.connect({**ASK, "prompt": str(number)}) for number in range(20)]
    await until(lambda: rig.owner.snapshot().lanes[0].waiting == 20)
    for client in clients[::2]:
        client.leave()
    left = time.monotonic()
    await until(lambda: rig.owner.snapshot().lanes[0].waiting == 10)
    assert time.monotonic() - left < 1
    ledger = await rig.last(10)
    assert (ledger.outcome, ledger.error, ledger.status) == (RequestOutcome.CANCELLED, "client_gone", 0)
    engine = await rig.add(FakeEngine())
    assert [(await client.answer())[0] for client in clients[1::2]] == [200] * 10
    assert sorted(int(json.loads(seen.body)["prompt"]) for seen in engine.seen) == list(range(1, 20, 2))
    for client in clients[1::2]:
        client.leave()


@pytest.mark.parametrize("ask", [ASK, STREAM], ids=["whole", "stream"])
async def test_leaving_before_the_first_byte(rig: Rig, ask: dict[str, Any]) -> None:
    engine = rig.engines[0]
    engine.behave = waiting(asyncio.Event())
    client = await rig.connect(ask)
    await until(lambda: engine.open == 1)
    client.leave()
    await until(lambda: engine.aborted == 1)
    assert (await rig.last()).outcome is RequestOutcome.CANCELLED
    assert rig.owner.snapshot().endings["cancelled"] == 1


async def test_leaving_in_a_stream(rig: Rig) -> None:
    engine = rig.engines[0]
    engine.behave = pieces(event("a"), asyncio.Event())
    client = await rig.connect(STREAM)
    await client.answer_head()
    client.leave()
    await until(lambda: engine.aborted == 1)
    assert (await rig.last()).outcome is RequestOutcome.CANCELLED
    assert rig.owner.snapshot().endings["cancelled"] == 1


async def test_leaving_while_the_stream_is_not_read(rig: Rig) -> None:
    engine = rig.engines[0]
    engine.behave = pieces(*[event("x" * 60_000)] * 1_000)
    client = await rig.connect(STREAM, small=True)
    await client.answer_head()
    await asyncio.sleep(0.2)
    client.leave()
    await until(lambda: engine.aborted == 1)
    assert (await rig.last()).outcome is RequestOutcome.CANCELLED


async def test_leaving_in_the_upload(rig: Rig) -> None:
    client = await rig.connect()
    client.writer.write(head("POST", "/v1/completions", 1_000) + b"{")
    await until(lambda: len(rig.service.flows) == 1)
    client.leave()
    ledger = await rig.last()
    assert (ledger.outcome, ledger.error) == (RequestOutcome.CANCELLED, "client_gone")


async def test_leaving_after_the_end_is_no_cancellation(rig: Rig) -> None:
    for _ in range(20):
        client = await rig.connect(STREAM)
        await client.answer()
        client.leave()
    await rig.last(20)
    assert {ledger.outcome for ledger in rig.closed} == {RequestOutcome.OK}
    assert rig.owner.snapshot().endings["finished"] == 20


async def test_leaving_at_random_moments(make_rig: MakeRig) -> None:
    """A storm of clients that leave; the fixture checks that the books balance."""
    rig = await make_rig(engines=2)
    for engine in rig.engines:
        engine.behave = pieces(0.02, *[event(), 0.01] * 20, DONE)

    async def visit(number: int) -> None:
        client = await rig.connect(STREAM if number % 3 else ASK)
        await asyncio.sleep(number * 7 % 60 / 100)
        client.leave()

    await asyncio.gather(*(visit(number) for number in range(150)))
    await until(lambda: len(rig.closed) == 150)
    assert all(engine.open == 0 for engine in rig.engines)


async def test_keep_alive(rig: Rig) -> None:
    client = await rig.connect()
    asks: list[tuple[str, str, Any]] = [
        ("POST", "/v1/completions", ASK),
        ("POST", "/v1/completions", STREAM),
        ("GET", "/v1/models", b""),
        ("POST", "/v1/completions", b"{"),
        ("GET", "/v1/nothing", b""),
        ("DELETE", "/v1/models", b""),
        ("POST", "/v1/completions", ASK),
    ]
    statuses = []
    for method, path, body in asks:
        await client.request(path, body, method)
        status, headers, _ = await client.answer()
        assert headers.get("connection") != "close"
        statuses.append(status)
    assert statuses == [200, 200, 200, 400, 404, 405, 200]
    client.leave()


async def test_pipelining(rig: Rig) -> None:
    client = await rig.connect()
    body = json.dumps(ASK).encode()
    client.writer.write((head("POST", "/v1/completions", len(body)) + body) * 3)
    for _ in range(3):
        status, _, payload = await client.answer()
        assert (status, json.loads(payload)["choices"][0]["text"]) == (200, "abc")
    client.leave()


async def test_http_1_0(rig: Rig) -> None:
    client = await rig.connect()
    body = json.dumps(ASK).encode()
    client.writer.write(b"POST /v1/completions HTTP/1.0\r\ncontent-length: %d\r\n\r\n" % len(body) + body)
    status, headers, _ = await client.answer()
    assert (status, headers["connection"]) == (200, "close")
    assert await client.is_cut()


async def test_expect_100_continue(rig: Rig) -> None:
    client = await rig.connect()
    body = json.dumps(ASK).encode()
    client.writer.write(head("POST", "/v1/completions", len(body), expect="100-continue"))
    assert (await client.answer_head())[0] == 100
    client.writer.write(body)
    assert (await client.answer())[0] == 200
    client.leave()


async def test_an_offered_upgrade_is_ignored(rig: Rig) -> None:
    """Java's HTTP client offers h2c with every request, and keeps the connection."""
    client = await rig.connect()
    for _ in range(3):
        await client.request(
            "/v1/completions",
            ASK,
            upgrade="h2c",
            connection="Upgrade, HTTP2-Settings",
            **{"http2-settings": "AAMAAABk"},
        )
        assert (await client.answer())[0] == 200
    client.leave()


async def test_a_chunked_upload(rig: Rig) -> None:
    client = await rig.connect()
    body = json.dumps(ASK).encode()
    client.writer.write(b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n")
    for at in range(0, len(body), 7):
        piece = body[at : at + 7]
        client.writer.write(b"%x\r\n" % len(piece) + piece + b"\r\n")
    client.writer.write(b"0\r\n\r\n")
    assert (await client.answer())[0] == 200
    assert rig.engines[0].seen[0].body == body
    client.leave()


async def test_a_wrong_method(rig: Rig) -> None:
    paths = (("/v1/completions", "POST"), ("/tokenize", "POST"), ("/v1/models", "GET, HEAD"), ("/metrics", "GET, HEAD"))
    for method, (path, allowed) in itertools.product(["GET", "PUT", "DELETE", "PATCH", "OPTIONS"], paths):
        if method in allowed:
            continue
        client = await rig.connect()
        await client.request(path, b"", method, **CREDENTIALS)
        status, headers, body = await client.answer()
        assert (status, headers["allow"]) == (405, allowed)
        assert openai_error(body)["code"] == "method_not_allowed"
        assert headers["x-request-id"]
        client.leave()


async def test_head(rig: Rig) -> None:
    for path, desired in (("/v1/models", 200), ("/health", 200), ("/v1/completions", 405), ("/nothing", 404)):
        client = await rig.connect()
        await client.request(path, b"", "HEAD")
        status, headers = await client.answer_head()
        assert status == desired
        assert "x-request-id" in headers
        await client.request("/health", b"", "GET")  # the connection is in step: no body came
        assert (await client.answer())[0] == 200
        client.leave()


async def test_unknown_paths(rig: Rig) -> None:
    for path in (
        "/",
        "/v1",
        "/v1/completions/",
        "/v1/chat",
        "//v1/models",
        "/v1/models%2f",
        "/raylane/",
        "/..",
        "/v1/responses/resp_1",
        "/docs",
    ):
        client = await rig.connect()
        await client.request(path, b"", "GET")
        status, headers, body = await client.answer()
        assert status == 404, path
        assert openai_error(body)["code"] in ("not_found", "model_not_found")
        assert headers["x-request-id"]
        client.leave()


IDS = [
    ("my-id_1.2:3/4", True),
    ("x" * 128, True),
    ("x" * 129, False),
    ("", False),
    ("has a space", False),
    ("ünï", False),
    ("tab\tinside", False),
    ("a;b=c,d<script>", True),
]


async def test_request_ids(rig: Rig, subtests: pytest.Subtests) -> None:
    asks = (
        ("/v1/completions", "POST", ASK),
        ("/v1/completions", "POST", b"{"),
        ("/v1/models", "GET", b""),
        ("/no", "GET", b""),
    )
    for given, kept in IDS:
        with subtests.test(given=given):
            for path, method, body in asks:
                client = await rig.connect()
                await client.request(path, body, method, **{"x-request-id": given})
                _, headers, _ = await client.answer()
                assert (headers["x-request-id"] == given) is kept
                assert headers["x-request-id"].isprintable()
                assert headers["x-request-id"]
                client.leave()


async def test_two_requests_with_one_id(rig: Rig) -> None:
    """A client's id is for its own books: ours is another one, so nothing collides."""
    rig.engines[0].behave = waiting(release := asyncio.Event())
    asks = [asyncio.create_task(rig.ask(headers={"x-request-id": "same"})) for _ in range(4)]
    await until(lambda: rig.engines[0].open == 4)
    release.set()
    assert [status for status, _ in await asyncio.gather(*asks)] == [200] * 4
    assert len({seen.headers["x-request-id"] for seen in rig.engines[0].seen}) == 4


async def test_two_id_headers(rig: Rig) -> None:
    client = await rig.connect()
    client.writer.write(b"GET /health HTTP/1.1\r\nhost: x\r\nx-request-id: one\r\nX-Request-Id: two\r\n\r\n")
    assert (await client.answer())[1]["x-request-id"] == "one"
    client.leave()


async def test_a_body_over_the_limit(make_rig: MakeRig) -> None:
    rig = await make_rig(limits={"max_body_bytes": 1_024})
    exact = json.dumps(ASK).encode().ljust(1_024)
    assert (await rig.ask(exact))[0] == 200
    over = exact + b" "
    async with rig.post("/v1/completions", over) as response:
        assert response.status == 413
        error = openai_error(await response.read())
    assert error["code"] == "body_too_large"
    assert "1025" in error["message"]
    assert "1024" in error["message"]
    assert len(rig.engines[0].seen) == 1


async def test_a_body_far_over_the_limit(make_rig: MakeRig) -> None:
    """The client gets its 413 though it is still sending, announced or not."""
    rig = await make_rig(limits={"max_body_bytes": 1_024})

    async def chunks() -> Any:
        for _ in range(320):
            yield b"x" * 65_536

    for body in (b"x" * 20_000_000, chunks()):
        async with rig.post("/v1/completions", b"") if body is None else _posted(rig, body) as response:
            assert response.status == 413
            assert openai_error(await response.read())["code"] == "body_too_large"
    await rig.last(2)
    assert {ledger.outcome for ledger in rig.closed} == {RequestOutcome.REFUSED}


def _posted(rig: Rig, body: Any) -> Any:
    if isinstance(body, bytes):
        return rig.post("/v1/completions", body)
    return _Chunked(rig.url + "/v1/completions", body)


class _Chunked:
    """A post of a body of unknown length."""

    def __init__(self, url: str, body: Any) -> None:
        self._url = url
        self._body = body

    async def __aenter__(self) -> Any:
        import aiohttp

        self._session = aiohttp.ClientSession()
        return await self._session.post(self._url, data=self._body)

    async def __aexit__(self, *raised: object) -> None:
        await self._session.close()


async def test_a_body_over_the_limit_is_not_kept(make_rig: MakeRig) -> None:
    """A client that goes on sending after its 413 is cut or read to nowhere, never gathered."""
    rig = await make_rig(limits={"max_body_bytes": 1_024})
    client = await rig.connect()
    client.writer.write(b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n")
    client.writer.write(b"1000\r\n" + b"x" * 4_096 + b"\r\n")
    status, headers, _ = await client.answer()
    assert (status, headers["connection"]) == (413, "close")
    assert await client.is_cut()


async def test_what_is_not_http(rig: Rig) -> None:
    for nonsense in (
        b"hello\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"POST / HTTP/1.1\r\ncontent-length: x\r\n\r\n",
    ):
        client = await rig.connect()
        client.writer.write(nonsense)
        status, headers, body = await client.answer()
        assert (status, headers["connection"]) == (400, "close")
        assert openai_error(body)["code"] == "invalid_http"
        assert await client.is_cut()


@pytest.mark.parametrize(
    "more", [b"".join(b"x-%d: " % number + b"y" * 1_000 + b"\r\n" for number in range(80)), b"x: " + b"y" * 80_000]
)
async def test_a_head_that_does_not_end(rig: Rig, more: bytes) -> None:
    client = await rig.connect()
    client.writer.write(b"GET /health HTTP/1.1\r\n" + more)
    status, _, body = await client.answer()
    assert status == 431
    openai_error(body)
    assert await client.is_cut()


async def test_a_head_that_comes_slowly(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_protocol, "HEAD_S", 0.3)
    unresponsive = await rig.connect()
    slow = await rig.connect()
    slow.writer.write(b"GET /health HTT")
    assert await unresponsive.is_cut()
    assert await slow.is_cut()
    kept = await rig.connect()  # on a kept connection too
    await kept.request("/health", b"", "GET")
    assert (await kept.answer())[0] == 200
    kept.writer.write(b"GET /hea")
    assert await kept.is_cut()


async def test_a_head_timer_leaves_a_running_answer_alone(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_protocol, "HEAD_S", 0.2)
    rig.engines[0].behave = pieces(event("a"), 0.8, event("b"), DONE)
    client = await rig.connect(STREAM)
    await client.answer_head()
    client.writer.write(b"GET /hea")  # half a next request, far too early
    body = b""
    while not body.endswith(b"0\r\n\r\n"):
        body += await client.reader.read(65_536)
    assert event("b") in body
    assert await client.is_cut()


async def test_many_at_once(make_rig: MakeRig) -> None:
    rig = await make_rig(engines=2)
    answers = await asyncio.gather(*(rig.ask(STREAM if number % 2 else ASK) for number in range(200)))
    assert {status for status, _ in answers} == {200}
    await until(lambda: len(rig.closed) == 200)
    assert rig.owner.snapshot().endings["finished"] == 200


async def test_max_waiting(make_rig: MakeRig) -> None:
    rig = await make_rig(engines=0, limits={"max_waiting": 3})
    clients = [await rig.connect(ASK) for _ in range(3)]
    await until(lambda: rig.owner.snapshot().lanes[0].waiting == 3)
    async with rig.post("/v1/completions", ASK) as response:
        assert response.status == 503
        assert int(response.headers["retry-after"]) >= 1
        assert openai_error(await response.read())["code"] == "overloaded"
    for client in clients:
        client.leave()
    await rig.last(4)


async def test_mangled_requests(rig: Rig) -> None:
    """Whatever comes over a connection, each is answered or ended, and the next client notices nothing."""
    dice = random.Random(7)
    body = json.dumps(STREAM).encode()
    good = head("POST", "/v1/completions", len(body), **{"x-request-id": "a", "connection": "keep-alive"}) + body
    for number in range(150):
        mangled = bytearray(good * dice.choice([1, 1, 2]))
        for _ in range(dice.randint(1, 6)):
            at = dice.randrange(len(mangled))
            match dice.randrange(4):
                case 0:
                    mangled[at] = dice.randrange(256)
                case 1:
                    del mangled[at : at + dice.randint(1, 40)]
                case 2:
                    mangled[at:at] = dice.randbytes(dice.randint(1, 20))
                case _:
                    mangled[at:at] = b"\r\n"
        client = await rig.connect()
        cut = dice.randrange(len(mangled) + 1)
        client.writer.write(bytes(mangled[:cut]))
        await asyncio.sleep(0)
        if not client.writer.transport.is_closing():
            client.writer.write(bytes(mangled[cut:]))
        if number % 3:
            try:
                async with asyncio.timeout(0.05):
                    while await client.reader.read(65_536):
                        pass
            except (TimeoutError, ConnectionError):
                pass
        client.leave()
    assert (await rig.ask())[0] == 200
