"""Answers that are not streamed, held by a gateway that does not own the model: their first tokens, and the death of
their replica."""

import asyncio

import pytest

from tests.deployments.gateway.fake_engine import waiting
from tests.deployments.gateway.rig import until
from tests.deployments.ownership.conftest import MakeCell


@pytest.mark.parametrize("own", [True, False], ids=["held by the owner", "held by the other"])
async def test_a_dead_replica_s_request_goes_to_the_other(make_cell: MakeCell, own: bool) -> None:
    cell = await make_cell(engines=2)
    hold = asyncio.Event()
    for engine in cell.engines:
        engine.behave = waiting(hold)
    rig = cell.owner if own else cell.other
    asked = asyncio.create_task(rig.ask())
    await until(lambda: any(engine.open for engine in cell.engines))
    victim, survivor = sorted(cell.engines, key=lambda engine: -engine.open)
    await victim.kill()
    await until(lambda: survivor.open)
    hold.set()
    assert (await asked)[0] == 200
    assert (await rig.last()).resubmitted == "replica_lost"
    assert [seen.headers["x-request-id"].rpartition("-")[2] for seen in (*victim.seen, *survivor.seen)] == ["1", "2"]
