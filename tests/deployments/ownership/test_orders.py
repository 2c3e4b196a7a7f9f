"""Orders and starts in a cell of several gateways: every one applies them, and so does the next owner."""

import asyncio
import time

from deployments.cell.act import Act, ActKind
from deployments.cell.scaling_state import ScalingState
from tests.deployments.gateway.fake_engine import waiting
from tests.deployments.gateway.rig import ASK, Rig, until
from tests.deployments.gateway.test_gateway_scaling import ZERO, page
from tests.deployments.ownership.conftest import MakeCell


def statuses(rig: Rig) -> list[str]:
    return [replica.status for replica in rig.owner.snapshot().replicas]


async def test_a_cordon_holds_everywhere_and_under_the_next_owner(make_cell: MakeCell) -> None:
    cell = await make_cell(engines=2)
    cordoned = cell.engines[0]
    await cell.directory.order(Act(time.time(), ActKind.CORDON, "demo", "me", "", cordoned.facts.replica_id))
    await until(lambda: all(rig.dispatcher.replicas.cordoned for rig in cell.rigs))
    for rig in cell.rigs:
        for _ in range(3):
            assert (await rig.ask())[0] == 200
        assert (await rig.ask({"model": "demo", "prompt": "x"}, "/tokenize"))[0] == 200
    assert not cordoned.seen
    dying, staying = cell.owner, cell.other
    await cell.crash(dying)
    await until(lambda: staying.dispatcher.own is not None and sorted(statuses(staying)) == ["cordoned", "ready"])
    for _ in range(3):
        assert (await staying.ask())[0] == 200
    assert not cordoned.seen


async def test_what_runs_on_a_cordoned_replica_is_adopted(make_cell: MakeCell) -> None:
    cell = await make_cell()
    go = asyncio.Event()
    cell.engines[0].behave = waiting(go)
    dying, staying = cell.owner, cell.other
    asks = [asyncio.create_task(staying.ask()) for _ in range(3)]
    await until(lambda: cell.engines[0].open == 3)
    await cell.directory.order(Act(time.time(), ActKind.CORDON, "demo", "me", "", cell.engines[0].facts.replica_id))
    await until(lambda: staying.dispatcher.replicas.cordoned)
    await cell.crash(dying)
    await until(lambda: staying.dispatcher.own is not None and staying.owner.snapshot().adopted == 3)
    assert statuses(staying) == ["cordoned"]
    go.set()
    assert {status for status, _ in await asyncio.gather(*asks)} == {200}
    await cell.directory.order(Act(time.time(), ActKind.UNCORDON, "demo", "me", "", cell.engines[0].facts.replica_id))
    assert (await staying.ask())[0] == 200


async def test_one_that_waits_at_another_gateway_is_told_of_a_start(make_cell: MakeCell) -> None:
    """At the owner, at the other gateway, and under the next owner."""
    cell = await make_cell(engines=0, models=[{**ZERO, "replicas": {"count": 0, "min": 0, "max": 2}}])
    await until(lambda: all(rig.dispatcher.owner is not None for rig in cell.rigs))
    asks = [asyncio.create_task(rig.error(ASK)) for rig in cell.rigs]
    await until(lambda: cell.owner.owner.snapshot().submitted == 2)
    await cell.directory.scaling(ScalingState("demo", 1, 1, 0, 1, "wake", time.time(), 500.0))
    for status, error in await asyncio.gather(*asks):
        assert (status, error["code"]) == (503, "no_replica")
    dying, staying = cell.owner, cell.other
    await cell.crash(dying)
    await until(lambda: staying.dispatcher.own is not None)
    status, error = await staying.error(ASK)
    assert (status, error["code"]) == (503, "no_replica")


async def test_the_books_are_the_owners(make_cell: MakeCell) -> None:
    cell = await make_cell()
    assert (await page(cell.owner))[0] == 200
    assert (await page(cell.other))[0] == 409
    for rig in cell.rigs:
        assert (await rig.ask())[0] == 200
