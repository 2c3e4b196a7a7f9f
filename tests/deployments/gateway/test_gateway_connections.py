"""Connections end, whatever state a client leaves them in. Raw sockets against the gateway's real servers."""

import asyncio
import json

import pytest

from deployments.http import protocol as http_protocol
from deployments.telemetry.ledger import RequestOutcome
from tests.deployments.gateway.fake_engine import DONE, event, pieces
from tests.deployments.gateway.rig import (
    ASK,
    PATIENCE_S,
    SECRET,
    STREAM,
    MakeRig,
    RawClient,
    Rig,
    head,
    openai_error,
    until,
)

QUICK = {"client_stall_s": 0.3, "keep_alive_s": 1.0}
POST = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\n"
CHUNKED = POST + b"transfer-encoding: chunked\r\n\r\n"
HEALTH = b"GET /health HTTP/1.1\r\nhost: x\r\n"
SPEC = b"PUT /raylane/spec HTTP/1.1\r\nhost: x\r\nauthorization: Bearer " + SECRET.encode() + b"\r\n"
STATES: dict[str, tuple[bytes, bytes]] = {
    "connected": (b"", b""),
    "empty lines": (b"\r\n", b"\r\n"),
    "half a first line": (b"GET /hea", b"x"),
    "half a head": (HEALTH, b"x"),
    "a head of many fields": (HEALTH, b"x: y\r\n"),
    "no body": (POST + b"content-length: 100000\r\n\r\n", b""),
    "half a body": (POST + b"content-length: 100000\r\n\r\n{", b" "),
    "no chunk": (CHUNKED, b""),
    "half a chunk's size": (CHUNKED + b"0", b"0"),
    "half a chunk's extension": (CHUNKED + b"5;x", b"x"),
    "half a chunk": (CHUNKED + b"fffff\r\n{", b" "),
    "small chunks": (CHUNKED, b"1\r\n \r\n"),
    "half a trailer": (CHUNKED + b"1\r\n{\r\n0\r\nx: ", b"x"),
    "many trailers": (CHUNKED + b"1\r\n{\r\n0\r\n", b"x: y\r\n"),
    "asks whether to continue": (POST + b"expect: 100-continue\r\ncontent-length: 100000\r\n\r\n", b""),
    "answered before its body": (HEALTH + b"content-length: 1000000\r\n\r\n", b" "),
    "answered before its chunks": (HEALTH + b"transfer-encoding: chunked\r\n\r\n", b"1\r\n \r\n"),
    "answered before its trailers": (HEALTH + b"transfer-encoding: chunked\r\n\r\n0\r\n", b"x: y\r\n"),
    "refused before its body": (b"POST /v1/models HTTP/1.1\r\nhost: x\r\ncontent-length: 1000000\r\n\r\n", b" "),
    "an own page's body": (SPEC + b"content-length: 1000000\r\n\r\n", b" "),
    "idle": (HEALTH + b"\r\n", b""),
    "half a next head": (HEALTH + b"\r\nGET /hea", b"x"),
    "idle after a late body": (HEALTH + b"content-length: 1\r\n\r\n ", b""),
}
"""What a client has sent when it stops, and what it may send piece by piece for ever without ending anything."""


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_protocol, "HEAD_S", 0.3)
    monkeypatch.setattr(http_protocol, "LATER_S", 0.3)
    monkeypatch.setattr(http_protocol, "LINGER_S", 0.3)


async def ends(port: int, sent: bytes, drip: bytes) -> None:
    """Sends, and then drop by drop, until the connection is ended."""
    client = await RawClient.connect(port)
    client.writer.write(sent)
    ended = asyncio.create_task(client.is_cut())
    while drip and not ended.done():
        client.writer.write(drip)
        await asyncio.wait([ended], timeout=0.05)
    assert await ended


@pytest.mark.usefixtures("quick")
async def test_whatever_state_a_client_stops_in_is_ended(make_rig: MakeRig, subtests: pytest.Subtests) -> None:
    rig = await make_rig(timeouts=QUICK, limits={"min_body_bytes_per_s": 100_000})
    cases = {
        (name, port, drips): sent
        for name, sent in STATES.items()
        for port in (rig.port, rig.gateway._cell_server.port)
        for drips in (False, True)
    }
    results = await asyncio.gather(
        *(ends(port, sent, drip if drips else b"") for (_, port, drips), (sent, drip) in cases.items()),
        return_exceptions=True,
    )
    for (name, port, drips), result in zip(cases, results, strict=True):
        with subtests.test(name=name, cell=port != rig.port, drips=drips):
            assert result is None
    for server in (rig.gateway._server, rig.gateway._cell_server):
        await until(lambda server=server: not server._server.server_state.connections)  # type: ignore[misc]


@pytest.mark.usefixtures("quick")
@pytest.mark.whole
async def test_a_client_that_reads_none_of_its_answers_is_ended(make_rig: MakeRig) -> None:
    rig = await make_rig(timeouts=QUICK)
    client = await rig.connect(small=True)
    connections = rig.gateway._server._server.server_state.connections
    await until(lambda: connections)
    while connections:
        client.writer.write(head("GET", "/metrics", 0, authorization=f"Bearer {SECRET}"))
        await asyncio.sleep(0.005)


async def test_a_body_that_trickles_is_told_that_it_is_too_slow(make_rig: MakeRig) -> None:
    rig = await make_rig(timeouts={"client_stall_s": 0.5}, limits={"min_body_bytes_per_s": 1_000})
    client = await rig.connect()
    client.writer.write(head("POST", "/v1/completions", 100_000))
    answer = asyncio.create_task(client.answer())
    while not answer.done():
        client.writer.write(b" ")
        await asyncio.wait([answer], timeout=0.02)
    status, headers, body = await answer
    assert (status, headers["connection"], openai_error(body)["code"]) == (408, "close", "client_too_slow")
    ledger = await rig.last()
    assert (ledger.outcome, ledger.error) == (RequestOutcome.FAILED, "client_too_slow")
    assert await client.is_cut()


@pytest.mark.parametrize(
    ("sent", "status", "code"),
    [
        (head("POST", "/v1/completions", 1 << 40), 413, "body_too_large"),
        (CHUNKED + b"no size\r\n", 400, "invalid_http"),
        (b"not HTTP\r\n\r\n", 400, "invalid_http"),
    ],
    ids=["a body over the limit", "bad chunks", "no HTTP"],
)
async def test_a_client_that_is_still_sending_reads_why_it_is_refused(
    rig: Rig, sent: bytes, status: int, code: str
) -> None:
    """It sends more than the kernel keeps for anybody: had nobody read that, a reset would have taken the answer
    away."""
    client = await rig.connect()
    client.writer.write(sent)
    await asyncio.wait_for(client.reader._wait_for_data("answer"), PATIENCE_S)  # type: ignore[attr-defined]  # the answer is there, and unread
    for _ in range(256):
        client.writer.write(b" " * 65_536)
        await client.writer.drain()
    reported, headers, body = await client.answer()
    assert (reported, headers["connection"], openai_error(body)["code"]) == (status, "close", code)
    assert await client.is_cut()


@pytest.mark.usefixtures("quick")
async def test_a_refused_client_that_never_stops_sending_is_cut(rig: Rig) -> None:
    client = await rig.connect()
    connections = rig.gateway._server._server.server_state.connections
    client.writer.write(head("POST", "/v1/completions", 1 << 40))
    await until(lambda: connections)
    while connections:
        client.writer.write(b" " * 1_024)
        await asyncio.sleep(0.01)


@pytest.mark.usefixtures("quick")
async def test_a_slow_but_honest_body_passes(make_rig: MakeRig) -> None:
    """It takes several times as long as a body of one byte may, at four times the rate that is asked for."""
    rig = await make_rig(timeouts=QUICK, limits={"min_body_bytes_per_s": 16_384})
    client = await rig.connect()
    body = json.dumps(ASK).encode().ljust(64 << 10)
    client.writer.write(head("POST", "/v1/completions", len(body)))
    for at in range(0, len(body), 4 << 10):
        client.writer.write(body[at : at + (4 << 10)])
        await asyncio.sleep(1 / 16)
    assert (await client.answer())[0] == 200


async def test_a_body_after_its_answer_leaves_the_connection_in_step(rig: Rig) -> None:
    client = await rig.connect()
    client.writer.write(HEALTH + b"content-length: 10\r\n\r\n")
    assert (await client.answer())[0] == 200
    client.writer.write(b"x" * 10)
    await client.request("/v1/completions", ASK)
    assert (await client.answer())[0] == 200


async def test_an_http_1_0_client_gets_no_chunks(rig: Rig) -> None:
    rig.engines[0].behave = pieces(event("a"), 0.01, event("b"), DONE)
    client = await rig.connect()
    body = json.dumps(STREAM).encode()
    client.writer.write(b"POST /v1/completions HTTP/1.0\r\ncontent-length: %d\r\n\r\n" % len(body) + body)
    status, headers = await client.answer_head()
    assert (status, headers["connection"], "transfer-encoding" in headers, "content-length" in headers) == (
        200,
        "close",
        False,
        False,
    )
    assert await client.reader.read() == event("a") + event("b") + DONE
    assert (await rig.last()).outcome is RequestOutcome.OK


async def test_a_client_that_leaves_is_noticed_though_it_has_asked_ahead(rig: Rig) -> None:
    engine = rig.engines[0]
    engine.behave = pieces(event("a"), asyncio.Event())
    client = await rig.connect(STREAM)
    await client.answer_head()
    client.writer.write((HEALTH + b"\r\n") * 3)
    await asyncio.sleep(0.05)
    client.leave()
    await until(lambda: engine.aborted == 1)
    assert (await rig.last()).outcome is RequestOutcome.CANCELLED


@pytest.mark.parametrize(
    "ahead",
    [
        head("POST", "/v1/completions", 1_000_000) + b" " * 1_000_000,
        (HEALTH + b"\r\n") * (http_protocol.MAX_PIPELINED + 2),
    ],
    ids=["a long body", "many requests"],
)
async def test_asking_far_ahead_is_refused(rig: Rig, ahead: bytes) -> None:
    engine = rig.engines[0]
    engine.behave = pieces(event("a"), asyncio.Event())
    client = await rig.connect(STREAM)
    await client.answer_head()
    client.writer.write(ahead)
    assert await client.is_cut()
    await until(lambda: engine.aborted == 1)


async def test_one_connection_too_many_is_refused_and_the_next_is_not(make_rig: MakeRig) -> None:
    rig = await make_rig(limits={"max_connections": 3})
    connections = rig.gateway._server._server.server_state.connections
    clients = [await rig.connect() for _ in range(3)]
    await until(lambda: len(connections) == 3)
    refused = await rig.connect()
    status, _, body = await refused.answer()
    assert (status, openai_error(body)["code"]) == (503, "overloaded")
    assert await refused.is_cut()
    clients.pop().leave()
    await until(lambda: len(connections) == 2)
    last = await rig.connect(ASK)
    assert (await last.answer())[0] == 200
