"""What a gateway keeps of the requests that it has served: nothing."""

import asyncio
import gc
import os

import psutil
import pytest

from deployments.gateway.entrance import digest_of
from deployments.gateway.operators import cost_reporter
from tests.deployments.gateway.bodies import ForgetfulEngine, forget, streams_hold_no_bodies
from tests.deployments.gateway.fake_engine import DONE, dying, event, good, pieces, refusing
from tests.deployments.gateway.rig import ASK, MakeRig, Rig


@pytest.mark.whole
async def test_memory_is_flat(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Over rounds of all kinds of requests: served, failed, refused, left. A leak of a kilobyte a request would
    show."""
    process = psutil.Process(os.getpid())

    async def round_(count: int) -> None:
        for behave in (good, dying(event()), pieces(event(), 0.01, DONE), refusing("draining", times=3)):
            rig.engines[0].behave = behave
            asks = [rig.ask({**ASK, "stream": number % 2 == 0, "prompt": "x" * 2_000}) for number in range(count)]
            await asyncio.gather(*asks, rig.ask(b"{"), rig.ask({**ASK, "model": "none"}))
            clients = [await rig.connect({**ASK, "stream": True}) for _ in range(count // 4)]
            for client in clients:
                client.leave()
        await forget(rig)
        rig.engines[0].seen.clear()

    rig.gateway._recent._kept = (
        8  # soon full: what is kept for `raylane why` is bounded, and is not what is looked for here
    )
    monkeypatch.setattr(cost_reporter, "KEPT_S", 0.0)  # likewise what is kept in case another gateway dies
    for _ in range(2):
        await round_(30)
    gc.collect()
    before = process.memory_info().rss
    objects = len(gc.get_objects())
    for _ in range(3):
        await round_(30)
    gc.collect()
    assert len(gc.get_objects()) - objects < 2_000
    assert process.memory_info().rss - before < 8 << 20


@pytest.mark.whole
async def test_a_body_is_kept_until_its_answer_begins(make_rig: MakeRig) -> None:
    """Both of a tenant's: as it came, and with a salt for the engine."""
    rig = await make_rig(engines=0, tenants=[{"name": "a", "keys": [digest_of("key-a")]}])
    engine = await rig.add(ForgetfulEngine(max_num_seqs=16))
    await streams_hold_no_bodies(rig, engine, authorization="Bearer key-a")
