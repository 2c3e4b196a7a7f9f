"""Random stories of a peer that is broken, as the one that gets requests and as the one that sends them: each request
ends once, nothing fails inside the gateway, and nothing is left."""

import asyncio
import contextlib
import dataclasses
import json
import random
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from aiohttp import web

from deployments.gateway.peers.auth import Call, Signer
from deployments.gateway.peers.client import HOP_PATH
from deployments.gateway.peers.envelope import HopEnvelope
from deployments.gateway.peers.frames import FrameKind
from deployments.peering import HandOverReason, HopFacts
from tests.deployments.gateway.fake_engine import DONE, dying, event, good, pieces
from tests.deployments.gateway.peers.cells import PEERS_SECRET, Cells, known_to, peering_of
from tests.deployments.gateway.peers.fake_peer import HEAD, FakePeer, Taken
from tests.deployments.gateway.rig import ASK, RawClient, Rig, until

pytestmark = pytest.mark.whole
STORIES = 120
AT_ONCE = 8
STREAM = {**ASK, "stream": True}
USAGE = {
    "status": 200,
    "sequences": 1,
    "prompt_tokens": 3,
    "cached_tokens": 0,
    "output_tokens": 2,
    "preemptions": 0,
    "queued_s": 0.0,
    "prefill_s": 0.1,
    "decode_s": 0.1,
    "first_byte_s": 0.1,
    "wall_s": 0.3,
}
WHOLE = {"status": 200, "headers": [["content-type", "application/json"]]}
CONTENTS: dict[FrameKind, tuple[Any, ...]] = {
    FrameKind.HEAD: (HEAD, HEAD, HEAD, WHOLE, {**HEAD, "status": 500}, [], b"[" * 9_999),
    FrameKind.DATA: (event("a"), event("b"), DONE, b"", b"x" * 70_000),
    FrameKind.FIRST_TOKEN: (b"", b"x"),
    FrameKind.BEAT: (b"",),
    FrameKind.ERROR: (
        {"code": "overloaded", "message": "x", "param": None, "headers": {}},
        {"code": "invalid_value", "message": "x", "param": "n", "headers": {"retry-after": "1\n"}},
        {"code": [], "message": 1},
    ),
    FrameKind.END: ({"error": None}, {"error": None}, {"error": "engine_error"}, {"error": 5}, b"\xff"),
    FrameKind.USAGE: (USAGE, USAGE | {"prompt_tokens": -1}, USAGE | {"wall_s": "x"}, b""),
}


@pytest.fixture
async def watched(caplog: pytest.LogCaptureFixture) -> AsyncIterator[None]:
    """No task ends with an error that nobody reads, and nothing fails inside a gateway."""
    found: list[str] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda loop, context: found.append(str(context)))
    yield
    assert found == []
    assert [record.getMessage() for record in caplog.records if "failed inside" in record.getMessage()] == []


async def story_of(dice: random.Random, taken: Taken) -> None:
    """Frames in an order that makes sense, or in none."""
    orderly = [FrameKind.HEAD, FrameKind.DATA, FrameKind.DATA, FrameKind.END, FrameKind.USAGE]
    kinds = orderly if dice.random() < 0.5 else dice.choices(list(FrameKind), k=dice.randint(0, 8))
    for kind in kinds:
        content = CONTENTS[kind][0] if dice.random() < 0.7 else dice.choice(CONTENTS[kind])
        await (taken.put(kind, content) if isinstance(content, bytes) else taken.json(kind, content))
        match dice.random():
            case chance if chance < 0.06:
                await taken.raw(dice.randbytes(dice.randint(1, 60)))
            case chance if chance < 0.12:
                taken.reset()
                return
            case chance if chance < 0.18:
                return
            case chance if chance < 0.5:
                await asyncio.sleep(dice.uniform(0, 0.05))
    if dice.random() < 0.3:
        await asyncio.sleep(5)


@pytest.mark.usefixtures("watched")
@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.long)])
async def test_a_peer_may_answer_what_it_likes(make_cells: Callable[..., Cells], seed: int) -> None:
    cells = make_cells(gateway={"heartbeat_s": 0.0})
    home = await cells.start("eu", engines=0)
    peer = await FakePeer(cells.spec_of("us"), "us", cells.spec_of("us").gateway.port).start()
    await until(lambda: all(known_to(home).values()))
    dice = random.Random(seed)
    takes = peer.answer_hop

    async def answer(request: web.Request, call: Call) -> web.StreamResponse:
        match dice.random():
            case chance if chance < 0.05:
                return peer.signed(call, {"refusal": dice.choice(["loaded", "late", "old_epoch", "spec"])}, 409)
            case chance if chance < 0.1:
                assert request.transport is not None
                request.transport.abort()
                return web.Response()
            case _:
                return await takes(request, call)

    peer.answer_hop = answer
    peer.script = lambda taken: story_of(dice, taken)

    async def client(number: int) -> None:
        stays_s = dice.choice((0.0, dice.uniform(0, 0.3), 1.5))
        asked = asyncio.create_task(home.ask(STREAM if number % 3 else ASK))
        await asyncio.wait([asked], timeout=stays_s)
        if asked.done() and not asked.exception():
            _, body = asked.result()
            assert body.count(b'data: {"error"') <= 1, body
        asked.cancel()
        with contextlib.suppress(asyncio.CancelledError, Exception):
            await asked

    for start in range(0, STORIES, AT_ONCE):
        await asyncio.gather(*(client(number) for number in range(start, start + AT_ONCE)))
    await until(lambda: not len(home.service.flows))
    assert len(peer.hops) > STORIES / 3
    await until(lambda: not home.owner.records.live and not peering_of(home).core.hops.open())
    assert not home.dispatcher.hops._hops
    ids = [ledger.attempt_id.partition("-hop")[0] for ledger in home.closed]
    await until(lambda: not len(home.gateway._closed))
    assert len(ids) == len(set(ids)), "each request is closed once"
    await peer.stop()


async def sent(dice: random.Random, rig: Rig, facts: HopFacts) -> None:
    """A hop, or what somebody with the secret sends instead, who leaves at some time."""
    changes: dict[str, Any] = dice.choice(
        [
            {},
            {},
            {},
            {"number": dice.randint(1, 20)},
            {"waited_s": 1e9, "slack_s": -1e9},
            {"patience_s": dice.choice([-1e9, 0.0, 0.05])},
            {"slo_s": 1e9, "reason": HandOverReason.SOONER},
            {"hops": 7},
            {"peer_epoch": 99},
            {"model": "other"},
        ]
    )
    hop = HopEnvelope(dataclasses.replace(facts, **changes), "/v1/completions", f"id-{facts.number}", {})
    body = json.dumps({**STREAM, "prompt": f"prompt {facts.number}"}).encode()
    headers = dict(Signer("eu", PEERS_SECRET).call("POST", HOP_PATH, "us", body, hop.header())[0])
    client = await RawClient.connect(rig.port)
    try:
        lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        head = f"POST {HOP_PATH} HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n{lines}\r\n".encode()
        whole = head + (body if dice.random() < 0.9 else b"x" * len(body))
        client.writer.write(whole[: dice.choice((len(whole),) * 8 + (dice.randint(0, len(whole)),))])
        with contextlib.suppress(TimeoutError, OSError, asyncio.IncompleteReadError):
            async with asyncio.timeout(dice.choice((0.0, dice.uniform(0, 0.1), 1.0))):
                await client.reader.read(1 << 20)
                await asyncio.sleep(dice.choice((0.0, 0.2)))
    finally:
        client.leave()


@pytest.mark.usefixtures("watched")
@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.long)])
async def test_a_peer_may_send_what_it_likes(make_cells: Callable[..., Cells], seed: int) -> None:
    """To either gateway of the cell. What is left of it, the fixture looks at."""
    cells = make_cells(gateway={"replicas": 2, "lame_duck_s": 0.1})
    await cells.start("eu", engines=0)
    rig = await cells.start("us", engines=2)
    second = await cells.add_gateway("us")
    await cells.met()
    dice = random.Random(seed)
    for engine in rig.engines:
        engine.behave = good
    core = peering_of(rig).core
    marks, regions = core.rules.marks_of("demo", "interactive", ""), frozenset(cells.names)
    for start in range(1, STORIES, AT_ONCE):
        behave = dice.choice([good, good, dying(event("a")), pieces(event("a"), 0.05, DONE), pieces(0.1, event("a"))])
        for engine in rig.engines:
            engine.behave = behave
        jobs = []
        for number in range(start, start + AT_ONCE):
            times = 0.0, 0.5, 20.0, 0.5
            named = f"r{number}", "eu", 7, number, 1, HandOverReason.NO_REPLICA
            facts = HopFacts(*named, "demo", "interactive", "", regions, marks, *times, core.epoch)
            jobs += [sent(dice, dice.choice((rig, second)), facts) for _ in range(dice.choice((1, 1, 2)))]
        await asyncio.gather(*jobs)
    await until(lambda: not len(rig.service.flows) and not len(second.service.flows))
    taken = [ledger.attempt_id for ledger in (*rig.closed, *second.closed) if ledger.attempts]
    assert len(taken) > 10
    assert len(taken) == len(set(taken)), "no hop is served twice"
    for engine in rig.engines:
        assert not engine.twice
        await until(lambda engine=engine: not engine.open)  # type: ignore[misc]
