"""What two cells keep of the requests that one has handed over to the other: nothing."""

import asyncio
import gc

import pytest

from deployments.gateway.operators import cost_reporter
from deployments.peering.reception import Reception
from tests.deployments.gateway.bodies import ForgetfulEngine, forget, streams_hold_no_bodies
from tests.deployments.gateway.fake_engine import DONE, event, good, pieces, whole
from tests.deployments.gateway.peers.cells import Cells, MakeCells
from tests.deployments.gateway.rig import ASK, STREAM, until


@pytest.mark.whole
async def test_nothing_is_kept_of_what_was_handed_over(cells: Cells, monkeypatch: pytest.MonkeyPatch) -> None:
    """Over rounds of answers, streamed and not, errors, and clients that leave: an object that is kept of each would
    show."""
    monkeypatch.setattr(Reception, "_late_or_loaded", lambda self, hop, here: None)  # however busy the machine is
    home, peer = cells["eu"], cells["us"]
    engine = peer.engines[0]

    async def round_(count: int) -> None:
        for behave in (good, whole(b'{"error": {"message": "x", "code": 400}}', 400), pieces(event("a"), 0.01, DONE)):
            engine.behave = behave
            for number in range(count):
                async with asyncio.timeout(20):
                    await home.ask({**(STREAM if number % 2 else ASK), "prompt": f"prompt {number} " * 20})
        engine.behave = pieces(event("a"), asyncio.Event())
        for _ in range(count // 4):
            client = await home.connect(STREAM)
            await client.answer_head()
            client.leave()
            await until(lambda: not engine.open)
        for rig in (home, peer):
            await forget(rig)
        engine.seen.clear()
        await asyncio.sleep(0.2)

    for rig in (home, peer):
        rig.gateway._recent._kept = 8
    monkeypatch.setattr(cost_reporter, "KEPT_S", 0.0)
    for _ in range(2):
        await round_(12)
    gc.collect()
    before = len(gc.get_objects())
    for _ in range(3):
        await round_(12)
    gc.collect()
    assert len(gc.get_objects()) - before < 600, "fewer than five for each request"


@pytest.mark.whole
async def test_a_body_is_kept_until_its_answer_begins(make_cells: MakeCells, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Reception, "_late_or_loaded", lambda self, hop, here: None)
    cells = make_cells()
    await cells.start("eu", engines=0)
    engine = await (await cells.start("us", engines=0)).add(ForgetfulEngine(max_num_seqs=16))
    await cells.met()
    await streams_hold_no_bodies(cells["eu"], engine)
