"""Random stories of a peer that is broken, as the one that gets requests and as the one that sends them: each request
ends once, nothing fails inside the gateway, and nothing is left."""

import asyncio
import contextlib
import json
import random
from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiohttp import web

from deployments.gateway.peers.client import HOP_PATH
from tests.deployments.gateway.fake_engine import DONE, dying, event, good, pieces
from tests.deployments.gateway.peers.cells import Cells, MakeCells, peering_of
from tests.deployments.gateway.peers.fake_peer import Taken, beside_fake
from tests.deployments.gateway.peers.test_peers_attacks import hop_of
from tests.deployments.gateway.rig import ASK, STREAM, RawClient, Rig, head, until

pytestmark = pytest.mark.whole
STORIES = 120
AT_ONCE = 8
HEADS = ((200, "text/event-stream"),) * 4 + ((200, "application/json"), (200, "text/plain"), (500, "text/event-stream"))
PIECES = (event("a"), event("b"), DONE, b"data: {", b"x" * 70_000)
ERRORS = (
    b'{"error": {"code": "overloaded", "message": "x", "param": null}}',
    b'{"error": {"code": "invalid_value", "message": "x", "param": "n"}}',
    b'{"error": {"code": [], "message": 1}}',
    b"[" * 9_999,
)


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
    """An answer, or something else."""
    if dice.random() < 0.2:
        await taken.whole(dice.choice(ERRORS), dice.choice((400, 429, 502, 503)))
        return
    await taken.head(*dice.choice(HEADS))
    for _ in range(dice.randint(0, 5)):
        await taken.write(dice.choice(PIECES))
        match dice.random():
            case chance if chance < 0.06:
                taken.raw(dice.randbytes(dice.randint(1, 60)))
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
async def test_a_peer_may_answer_what_it_likes(make_cells: MakeCells, seed: int) -> None:
    cells = make_cells(gateway={"heartbeat_s": 0.0})
    home, peer = await beside_fake(cells)
    dice = random.Random(seed)

    async def judge(request: web.Request) -> web.StreamResponse | None:
        match dice.random():
            case chance if chance < 0.05:
                return peer.refusal(dice.choice(["loaded", "late", "lost", "spec", "because"]))
            case chance if chance < 0.1:
                assert request.transport is not None
                request.transport.abort()
                return web.Response()
            case _:
                return None

    peer.judge = judge
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
    await until(lambda: not [*home.owner.records] and not peering_of(home).core.away)
    ids = [ledger.request_id for ledger in home.closed]
    await until(lambda: not len(home.gateway._closed))
    assert len(ids) == len(set(ids)), "each request is closed once"
    await peer.stop()


async def sent(dice: random.Random, rig: Rig, cells: Cells, attempt: int) -> None:
    """A hop, or what somebody with the secret sends instead, who leaves at some time."""
    changes: dict[str, Any] = dice.choice(
        [
            {},
            {},
            {},
            {"number": dice.randint(1, 20)},
            {"waited_s": 1e9, "slack_s": -1e9},
            {"patience_s": dice.choice([-1e9, 0.0, 0.05])},
            {"slo_s": 1e9},
            {"prompt_tokens": 1 << 40},
            {"hops": 7},
            {"model": "other"},
        ]
    )
    body = json.dumps({**STREAM, "prompt": f"prompt {attempt}"}).encode()
    headers = hop_of(cells, attempt, **changes)
    if dice.random() < 0.3:
        headers["expect"] = "100-continue"
    client = await RawClient.connect(rig.port)
    try:
        whole = head("POST", HOP_PATH, len(body), **headers) + (body if dice.random() < 0.9 else b"x" * len(body))
        client.writer.write(whole[: dice.choice((len(whole),) * 8 + (dice.randint(0, len(whole)),))])
        with contextlib.suppress(TimeoutError, OSError, asyncio.IncompleteReadError):
            async with asyncio.timeout(dice.choice((0.0, dice.uniform(0, 0.1), 1.0))):
                await client.reader.read(1 << 20)
                await asyncio.sleep(dice.choice((0.0, 0.2)))
    finally:
        client.leave()


@pytest.mark.usefixtures("watched")
@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.long)])
async def test_a_peer_may_send_what_it_likes(make_cells: MakeCells, seed: int) -> None:
    """To either gateway of the cell. What is left of it, the fixture looks at."""
    cells = make_cells(gateway={"replicas": 2, "lame_duck_s": 0.1})
    await cells.start("eu", engines=0)
    rig = await cells.start("us", engines=2)
    second = await cells.add_gateway("us")
    await cells.met()
    dice = random.Random(seed)
    for engine in rig.engines:
        engine.behave = good
    for start in range(1, STORIES, AT_ONCE):
        behave = dice.choice([good, good, dying(event("a")), pieces(event("a"), 0.05, DONE), pieces(0.1, event("a"))])
        for engine in rig.engines:
            engine.behave = behave
        jobs = []
        for attempt in range(start, start + AT_ONCE):
            jobs += [sent(dice, dice.choice((rig, second)), cells, attempt) for _ in range(dice.choice((1, 1, 2)))]
        await asyncio.gather(*jobs)
    await until(lambda: not len(rig.service.flows) and not len(second.service.flows))
    assert len([ledger for ledger in (*rig.closed, *second.closed) if ledger.attempts]) > 10
    for engine in rig.engines:
        assert not engine.twice
        await until(lambda engine=engine: not engine.open)  # type: ignore[misc]
