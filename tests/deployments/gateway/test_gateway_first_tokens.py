"""The engine's word of first tokens: what it does for answers that are not streamed, whose first byte comes after their
last token."""

import asyncio
import time
from typing import Any

import pytest

from tests.deployments.gateway.fake_engine import FakeEngine, event, good, pieces, waiting
from tests.deployments.gateway.rig import ASK, MakeRig, Rig, until


async def test_a_first_token_gives_the_prefill_budget_back_while_the_answer_runs(make_rig: MakeRig) -> None:
    rig = await make_rig(engines=0)
    engine = await rig.add(FakeEngine(max_num_seqs=16))
    hold = asyncio.Event()
    engine.behave = waiting(hold)
    asked = [asyncio.create_task(rig.ask({**ASK, "prompt": list(range(number, number + 900))})) for number in range(12)]
    while engine.open < 12:  # they come as the budget lets them
        known = engine.open
        await engine.first_tokens()
        await until(lambda known=known: engine.open > known)  # type: ignore[misc]
    await engine.first_tokens()
    await until(lambda: rig.owner.snapshot().replicas[0].prefill_tokens == 0)
    assert rig.owner.snapshot().replicas[0].leases == 12
    hold.set()
    assert {status for status, _ in await asyncio.gather(*asked)} == {200}


@pytest.mark.whole
async def test_ttft_of_a_whole_answer_is_that_of_its_first_token(make_rig: MakeRig) -> None:
    rig = await make_rig(classes=[{"name": "interactive", "ttft_ms": 300}])
    engine = rig.engines[0]
    hold = asyncio.Event()
    engine.behave = waiting(hold)
    engine.tells = False
    async with asyncio.TaskGroup() as group:
        asked = group.create_task(rig.answered())
        await until(lambda: engine.open == 1)
        await engine.first_tokens()
        reported_s = time.monotonic()
        await until(lambda: any(flow.met for flow in rig.owner.scheduler.tally.flows.values()))
        await until(lambda: time.monotonic() > reported_s + 0.3)  # the deadline passes while the answer runs
        hold.set()
    (flow,) = rig.owner.scheduler.tally.flows.values()
    assert (flow.met, flow.missed) == (1, 0)
    ledger = await rig.last()
    assert ledger.ttft_s is not None
    assert ledger.ttft_s < 0.3 < ledger.wall_s
    timing = dict(part.split(";dur=") for part in asked.result()[2]["server-timing"].split(", "))
    assert float(timing["engine"]) < 300 < float(timing["decode"])


async def test_the_owner_is_told_once_by_the_byte_or_by_the_engine(rig: Rig) -> None:
    reported = _count_first_tokens(rig)
    engine = rig.engines[0]
    hold, begun = asyncio.Event(), asyncio.Event()
    engine.behave = pieces(event("a"), hold, event("b"))
    asked = asyncio.create_task(rig.ask({**ASK, "stream": True}))
    await until(lambda: reported)  # by the byte
    await engine.first_tokens()
    engine.behave = waiting(begun, pieces(event("a")))
    other = asyncio.create_task(rig.ask({**ASK, "stream": True}))
    await until(lambda: engine.open == 2)
    await engine.first_tokens()
    await until(lambda: len(reported) == 2)  # by the engine
    begun.set()
    hold.set()
    await asyncio.gather(asked, other)
    await rig.settled()
    assert len(reported) == len(set(reported)) == 2


async def test_a_word_of_a_lease_that_is_not_the_request_s_any_more_is_nothing(rig: Rig) -> None:
    reported = _count_first_tokens(rig)
    engine = rig.engines[0]
    hold = asyncio.Event()
    engine.behave = waiting(hold)
    asked = asyncio.create_task(rig.ask())
    await until(lambda: engine.open == 1)
    (attempt_id,) = engine.running
    await engine.first_tokens("nobody-1", attempt_id.rpartition("-")[0] + "-7", "")
    await engine.first_tokens(attempt_id)
    await until(lambda: reported)
    hold.set()
    await asked
    assert reported == [attempt_id]


async def test_without_the_engine_s_word_the_answer_tells(rig: Rig) -> None:
    reported = _count_first_tokens(rig)
    rig.engines[0].behave = good
    assert (await rig.ask())[0] == 200
    assert len(reported) == 1
    assert (await rig.last()).ttft_s is not None  # by the engine's statistics


def _count_first_tokens(rig: Rig) -> list[str]:
    """The leases of which the scheduler is told that their first token came."""
    reported: list[str] = []
    scheduler = rig.owner.scheduler
    tell = scheduler.first_token

    def note(lease: Any, now: float) -> None:
        reported.append(lease.attempt_id)
        tell(lease, now)

    scheduler.first_token = note  # type: ignore[method-assign]
    return reported
