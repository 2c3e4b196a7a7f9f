"""Each hop's time-out, with its own error and nothing left behind."""

import asyncio
import json
import socket
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest

from deployments.protocol import ReplicaFacts
from deployments.telemetry.ledger import RequestOutcome
from tests.deployments.gateway.fake_engine import DONE, FakeEngine, event, good, pieces, waiting
from tests.deployments.gateway.rig import ASK, Rig, free_port, head, openai_error, until

MakeRig = Callable[..., Awaitable[Rig]]
STREAM = {**ASK, "stream": True}


def last_events(payload: bytes) -> tuple[bytes, dict[str, str]]:
    """What came before the error event of a broken stream, and the error."""
    before, last, done = payload.rsplit(b"data: ", 2)
    assert done == b"[DONE]\n\n"
    return before, openai_error(last)


async def test_queue_wait_with_no_replica(make_rig: MakeRig) -> None:
    rig = await make_rig(engines=0, timeouts={"queue_wait_s": 0.3})
    start = time.monotonic()
    async with rig.post("/v1/completions", ASK) as response:
        assert response.status == 503
        assert response.headers["retry-after"] == "1"
        assert openai_error(await response.read())["code"] == "queue_timeout"
    assert 0.25 < time.monotonic() - start < 2


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


async def test_nobody_listens(make_rig: MakeRig) -> None:
    rig = await make_rig()
    dead = replace(rig.engines[0].facts, replica_id="a-first-in-order", url=f"http://127.0.0.1:{free_port()}")
    take(rig, dead)
    status, _ = await rig.ask({**ASK, "stream": True})
    assert status == 200
    assert not rig.dispatcher.replicas.is_ready("a-first-in-order")


async def test_first_byte_of_a_stream(make_rig: MakeRig) -> None:
    rig = await make_rig(timeouts={"first_byte_s": 0.3})
    engine = rig.engines[0]
    engine.behave = waiting(asyncio.Event())
    status, error = await rig.error(STREAM)
    assert (status, error["code"]) == (504, "first_byte_timeout")
    await until(lambda: engine.aborted == 1)
    assert (await rig.last()).outcome is RequestOutcome.FAILED


async def test_headers_alone_are_no_first_byte(make_rig: MakeRig) -> None:
    rig = await make_rig(timeouts={"first_byte_s": 0.3})
    rig.engines[0].behave = pieces(asyncio.Event())
    status, error = await rig.error(STREAM)
    assert (status, error["code"]) == (504, "first_byte_timeout")


@pytest.mark.whole
async def test_an_answer_that_is_not_streamed_may_take_longer(make_rig: MakeRig) -> None:
    rig = await make_rig(timeouts={"first_byte_s": 0.2, "between_bytes_s": 0.2, "client_stall_s": 0.2})
    ready = asyncio.Event()
    rig.engines[0].behave = waiting(ready)
    asyncio.get_running_loop().call_later(1.0, ready.set)
    status, _ = await rig.ask()
    assert status == 200


async def test_between_bytes(make_rig: MakeRig) -> None:
    rig = await make_rig(timeouts={"between_bytes_s": 0.3})
    engine = rig.engines[0]
    engine.behave = pieces(event("a"), event("b")[:-9], asyncio.Event())
    status, payload = await rig.ask(STREAM)
    assert status == 200
    before, error = last_events(payload)
    assert before == event("a")
    assert error["code"] == "between_bytes_timeout"
    await until(lambda: engine.aborted == 1)
    ledger = await rig.last()
    assert ledger.error == "between_bytes_timeout"
    assert ledger.stages()["decode"] > 0.25


@pytest.mark.whole
async def test_total_before_the_first_byte(make_rig: MakeRig) -> None:
    rig = await make_rig(timeouts={"total_s": 0.5, "connect_s": 0.5, "between_bytes_s": 0.5, "client_stall_s": 0.5})
    rig.engines[0].behave = waiting(asyncio.Event())
    for body in (ASK, STREAM):
        status, error = await rig.error(body)
        assert (status, error["code"]) == (504, "total_timeout")


async def test_total_while_streaming(make_rig: MakeRig) -> None:
    rig = await make_rig(timeouts={"total_s": 0.6, "connect_s": 0.5, "between_bytes_s": 0.5, "client_stall_s": 0.5})
    rig.engines[0].behave = pieces(*[event(), 0.05] * 100)
    before, error = last_events((await rig.ask(STREAM))[1])
    assert error["code"] == "total_timeout"
    assert before == event() * before.count(b"\n\n")


async def test_total_in_the_lane(make_rig: MakeRig) -> None:
    rig = await make_rig(
        engines=0, timeouts={"total_s": 0.5, "connect_s": 0.5, "between_bytes_s": 0.5, "client_stall_s": 0.5}
    )
    status, error = await rig.error()
    assert (status, error["code"]) == (504, "total_timeout")


async def test_a_slow_upload(make_rig: MakeRig) -> None:
    rig = await make_rig(timeouts={"client_stall_s": 0.3})
    client = await rig.connect()
    client.writer.write(head("POST", "/v1/completions", 1_000) + b'{"model": ')
    status, headers, body = await client.answer()
    assert status == 408
    assert openai_error(body)["code"] == "client_too_slow"
    assert "x-request-id" in headers
    client.leave()


@pytest.mark.whole
async def test_a_steady_upload_may_take_longer(make_rig: MakeRig) -> None:
    rig = await make_rig(timeouts={"client_stall_s": 0.4}, limits={"min_body_bytes_per_s": 20})
    client = await rig.connect()
    body = json.dumps(ASK).encode()
    client.writer.write(head("POST", "/v1/completions", len(body)))
    for start in range(0, len(body), 10):
        client.writer.write(body[start : start + 10])
        await asyncio.sleep(0.15)
    assert (await client.answer())[0] == 200
    client.leave()


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
    client.leave()


async def test_a_tokenizer_request_has_the_same_time_outs(make_rig: MakeRig) -> None:
    rig = await make_rig(timeouts={"first_byte_s": 0.3, "client_stall_s": 30})
    rig.engines[0].behave = waiting(asyncio.Event())
    status, error = await rig.error({"model": "demo", "prompt": "x"}, path="/tokenize")
    assert (status, error["code"]) == (504, "first_byte_timeout")


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
        from aiohttp import web

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
    client.leave()


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
    client.leave()


@pytest.mark.whole
async def test_the_unread_end_of_a_short_stream(make_rig: MakeRig) -> None:
    """What fits the kernel's buffers is the kernel's; nothing of it keeps a flow."""
    rig = await make_rig(timeouts={"client_stall_s": 0.5, "keep_alive_s": 1})
    client = await rig.connect(STREAM, small=True)
    assert (await rig.last()).outcome is RequestOutcome.OK
    await no_connection_left(rig)
    client.leave()


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
    client.leave()
