"""Each hop's time-out, with its own error and nothing left behind."""

import asyncio
import socket
import time
from dataclasses import replace
from typing import Any

import pytest
from aiohttp import web

from deployments.protocol import ReplicaFacts
from deployments.telemetry.ledger import RequestOutcome
from tests.deployments.gateway.fake_engine import DONE, Behaviour, FakeEngine, event, good, pieces, waiting
from tests.deployments.gateway.rig import ASK, STREAM, MakeRig, Rig, free_port, head, openai_error, until


def last_events(payload: bytes) -> tuple[bytes, dict[str, str]]:
    """What came before the error event of a broken stream, and the error."""
    before, last, done = payload.rsplit(b"data: ", 2)
    assert done == b"[DONE]\n\n"
    return before, openai_error(last)


TOTAL = {"total_s": 0.5, "connect_s": 0.5, "between_bytes_s": 0.5, "client_stall_s": 0.5}


async def never(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
    await asyncio.sleep(3_600)
    raise AssertionError


BEFORE_A_BYTE: dict[str, tuple[dict[str, float], Behaviour | None, Any, str, int, str]] = {
    "queue_wait_s": ({"queue_wait_s": 0.3}, None, ASK, "/v1/completions", 503, "queue_timeout"),
    "total_s in the lane": (TOTAL, None, ASK, "/v1/completions", 504, "total_timeout"),
    "total_s of a whole answer": (TOTAL, never, ASK, "/v1/completions", 504, "total_timeout"),
    "total_s of a stream": (TOTAL, never, STREAM, "/v1/completions", 504, "total_timeout"),
    "first_byte_s": ({"first_byte_s": 0.3}, never, STREAM, "/v1/completions", 504, "first_byte_timeout"),
    "first_byte_s after the head": (
        {"first_byte_s": 0.3},
        pieces(3_600.0),
        STREAM,
        "/v1/completions",
        504,
        "first_byte_timeout",
    ),
    "first_byte_s of a tokenizer": (
        {"first_byte_s": 0.3, "client_stall_s": 30},
        never,
        {"model": "demo", "prompt": "x"},
        "/tokenize",
        504,
        "first_byte_timeout",
    ),
}
"""Time-outs, the engine's behaviour (None: there is no engine), the request, and what the client gets."""


@pytest.mark.parametrize("case", BEFORE_A_BYTE.values(), ids=BEFORE_A_BYTE)
async def test_a_time_out_before_the_first_byte(make_rig: MakeRig, case: Any) -> None:
    timeouts, behave, ask, path, status, code = case
    rig = await make_rig(engines=0 if behave is None else 1, timeouts=timeouts)
    for engine in rig.engines:
        engine.behave = behave
    start = time.monotonic()
    async with rig.post(path, ask) as response:
        assert (response.status, openai_error(await response.read())["code"]) == (status, code)
        assert response.headers.get("retry-after") == ("1" if status == 503 else None)
    assert time.monotonic() - start > 0.25
    for engine in rig.engines:
        await until(lambda engine=engine: engine.aborted == 1)  # type: ignore[misc]
    assert (await rig.last()).outcome is RequestOutcome.FAILED


@pytest.mark.parametrize(
    ("timeouts", "behave", "code"),
    [
        ({"between_bytes_s": 0.3}, pieces(event(), event("b")[:-9], 3_600.0), "between_bytes_timeout"),
        (TOTAL, pieces(*[event(), 0.05] * 100), "total_timeout"),
    ],
    ids=["between_bytes_s", "total_s"],
)
async def test_a_time_out_within_a_stream(
    make_rig: MakeRig, timeouts: dict[str, float], behave: Behaviour, code: str
) -> None:
    rig = await make_rig(timeouts=timeouts)
    engine = rig.engines[0]
    engine.behave = behave
    status, payload = await rig.ask(STREAM)
    before, error = last_events(payload)
    assert (status, error["code"]) == (200, code)
    assert before == event() * before.count(b"\n\n") != b""
    await until(lambda: engine.aborted == 1)
    ledger = await rig.last()
    assert ledger.error == code
    assert ledger.stages()["decode"] > 0.25


async def test_queue_wait_behind_others(make_rig: MakeRig) -> None:
    rig = await make_rig(engines=0, timeouts={"queue_wait_s": 0.5})
    release = asyncio.Event()
    engine = FakeEngine(max_num_seqs=1)
    engine.behave = waiting(release)
    await rig.add(engine)
    running = asyncio.create_task(rig.ask())
    await until(lambda: len(engine.seen) == 1)
    assert (await rig.error())[1]["code"] == "queue_timeout"
    release.set()
    assert (await running)[0] == 200
    assert (await rig.last(2)).status == 200


def take(rig: Rig, facts: ReplicaFacts) -> None:
    """The gateway believes in a replica that is not there."""
    rig.dispatcher.replicas.up(facts)
    rig.owner.replica_up(facts)


async def test_connect(make_rig: MakeRig) -> None:
    """A replica that takes no connection gets no request; the next one does."""
    rig = await make_rig(timeouts={"connect_s": 0.3})
    with socket.socket() as hole, socket.socket() as filler:
        hole.bind(("127.0.0.1", 0))
        hole.listen(0)
        filler.connect(hole.getsockname())  # the backlog is full now: the kernel drops who comes next
        dead = replace(
            rig.engines[0].facts, replica_id="a-first-in-order", url=f"http://127.0.0.1:{hole.getsockname()[1]}"
        )
        take(rig, dead)
        start = time.monotonic()
        status, _ = await rig.ask()
        assert status == 200
        assert time.monotonic() - start < 2
    ledger = await rig.last()
    assert ledger.attempts == 2
    assert ledger.refused_s > 0.25
    assert rig.owner.snapshot().endings["refused"] == 1


async def test_nobody_listens(rig: Rig) -> None:
    dead = replace(rig.engines[0].facts, replica_id="a-first-in-order", url=f"http://127.0.0.1:{free_port()}")
    take(rig, dead)
    status, _ = await rig.ask({**ASK, "stream": True})
    assert status == 200
    assert not rig.dispatcher.replicas.is_ready("a-first-in-order")


@pytest.mark.whole
async def test_an_answer_that_is_not_streamed_may_take_longer(make_rig: MakeRig) -> None:
    rig = await make_rig(timeouts={"first_byte_s": 0.2, "between_bytes_s": 0.2, "client_stall_s": 0.2})
    ready = asyncio.Event()
    rig.engines[0].behave = waiting(ready)
    asyncio.get_running_loop().call_later(1.0, ready.set)
    status, _ = await rig.ask()
    assert status == 200


@pytest.mark.whole
async def test_an_upload_is_bounded_by_the_total(make_rig: MakeRig) -> None:
    rig = await make_rig(
        timeouts={"total_s": 0.8, "connect_s": 0.5, "between_bytes_s": 0.5, "client_stall_s": 0.5},
        limits={"min_body_bytes_per_s": 1},
    )
    client = await rig.connect()
    client.writer.write(head("POST", "/v1/completions", 1_000))

    async def drip() -> None:
        while True:
            client.writer.write(b" ")
            await asyncio.sleep(0.1)

    dripping = asyncio.create_task(drip())
    status, _, body = await client.answer()
    dripping.cancel()
    assert status == 504
    assert openai_error(body)["code"] == "total_timeout"


async def test_a_client_that_stops_reading_a_stream(make_rig: MakeRig) -> None:
    rig = await make_rig(timeouts={"client_stall_s": 0.5})
    engine = rig.engines[0]
    engine.behave = pieces(*[event("x" * 60_000)] * 1_000)
    client = await rig.connect(STREAM, small=True)
    await client.answer_head()
    await until(lambda: engine.aborted == 1)
    ledger = await rig.last()
    assert ledger.outcome is RequestOutcome.FAILED
    assert ledger.stages()["client_stall"] > 0.4
    assert ledger.bytes_out < 30_000_000
    await no_connection_left(rig)
    assert await client.is_cut()


async def test_a_client_that_stops_reading_an_answer(make_rig: MakeRig) -> None:
    """The engine's part is over and its lease ended, but the answer does not stay in memory for ever."""
    rig = await make_rig(timeouts={"client_stall_s": 0.5})
    payload = b'"' + b"x" * 20_000_000 + b'"'

    async def behave(request, body):  # type: ignore[no-untyped-def]
        return web.Response(body=payload, content_type="application/json")

    rig.engines[0].behave = behave
    client = await rig.connect(ASK, small=True)
    await client.answer_head()
    await until(lambda: rig.owner.snapshot().endings["finished"] == 1)
    ledger = await rig.last()
    assert ledger.stages()["client_stall"] > 0.4
    await no_connection_left(rig)
    assert await client.is_cut()


@pytest.mark.whole
async def test_a_slow_reader_is_no_stalled_one(make_rig: MakeRig) -> None:
    """It takes longer in all than a stall may, and never stalls."""
    rig = await make_rig(timeouts={"client_stall_s": 2.0})
    engine = rig.engines[0]
    engine.behave = pieces(*[event("x" * 60_000)] * 100, DONE)
    client = await rig.connect(STREAM, small=True)
    await client.answer_head()
    got, tail = 0, b""
    while tail != b"0\r\n\r\n":
        piece = await client.reader.read(400_000)
        assert piece, "the answer ended early"
        got += len(piece)
        tail = (tail + piece)[-5:]
        await asyncio.sleep(3.0 * len(piece) / 6_000_000)
    assert got > 6_000_000
    assert (await rig.last()).outcome is RequestOutcome.OK


@pytest.mark.whole
async def test_a_client_that_does_not_read_an_error(make_rig: MakeRig) -> None:
    """It is told of the lost replica; since it does not read, it is cut after another client_stall_s."""
    rig = await make_rig(timeouts={"client_stall_s": 1.0})
    engine = rig.engines[0]
    engine.behave = pieces(*[event("x" * 60_000)] * 1_000)
    client = await rig.connect(STREAM, small=True)
    await client.answer_head()
    await until(lambda: rig.owner.snapshot().replicas[0].leases == 1)
    await asyncio.sleep(0.3)
    rig.dispatcher.replica_lost(engine.facts.replica_id)
    ledger = await rig.last()
    assert ledger.error == "replica_lost"
    await no_connection_left(rig)


async def no_connection_left(rig: Rig) -> None:
    """Waits until the server holds no connection of a client."""
    await until(lambda: not rig.gateway._server._server.server_state.connections)


@pytest.mark.whole
async def test_time_outs_are_not_started_by_a_good_request(make_rig: MakeRig) -> None:
    rig = await make_rig(timeouts={"first_byte_s": 0.5, "between_bytes_s": 0.5, "client_stall_s": 0.5})
    rig.engines[0].behave = pieces(event(), 0.4, event(), 0.4, event(), 0.4, DONE)
    status, payload = await rig.ask(STREAM)
    assert (status, payload) == (200, event() * 3 + DONE)
    rig.engines[0].behave = good
    client = await rig.connect()
    await asyncio.sleep(1.0)  # an idle connection is no flow
    await client.request("/v1/completions", ASK)
    assert (await client.answer())[0] == 200
