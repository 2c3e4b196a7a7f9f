"""The owner's races: whatever happens in one moment, no lease, no lane entry and no waiter is left."""

import asyncio
import random
import time
from collections.abc import AsyncIterator

import pytest

from cluster.spec import EngineSettings, Model
from deployments.gateway.owner import LaneOwner, QueueTimeout, Rejected
from deployments.protocol import ReplicaFacts, ReplicaState
from deployments.scheduling import Ending, Placement, Policy, Request

MODEL = Model(name="demo", source="/nowhere", settings=EngineSettings(max_model_len=1_024))


def facts(name: str = "r1", max_num_seqs: int = 1) -> ReplicaFacts:
    return ReplicaFacts(name, "demo", f"http://{name}", 1, "n", "generate", 1_024, max_num_seqs, 2_048, 65_536)


def request(name: str, wait_s: float = 60.0) -> Request:
    now = time.monotonic()
    return Request(name, 10, 10, now, now + 1.0, now + wait_s)


@pytest.fixture
async def owner() -> AsyncIterator[LaneOwner]:
    """An owner whose books must balance in the end."""
    owner = LaneOwner(MODEL, Policy(max_waiting=100))
    yield owner
    for _ in range(3):
        await asyncio.sleep(0)
    snapshot = owner.snapshot()
    assert snapshot.placed == sum(snapshot.endings.values())
    assert sum(lane.waiting for lane in snapshot.lanes) == 0
    assert not owner._waiters
    assert not owner._on_lost


async def wait(owner: LaneOwner, one: Request) -> Placement:
    assert owner.submit(one).accepted
    return await owner.placement(one)


async def waiting(owner: LaneOwner, name: str) -> asyncio.Task[Placement]:
    task = asyncio.create_task(wait(owner, request(name)))
    await asyncio.sleep(0)
    return task


async def cancelled(task: asyncio.Task[Placement]) -> None:
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_cancelled_while_waiting(owner: LaneOwner) -> None:
    task = await waiting(owner, "a")
    task.cancel()
    await cancelled(task)
    owner.replica_up(facts())
    assert owner.snapshot().placed == 0


async def test_cancelled_after_the_placement_before_the_task_ran(owner: LaneOwner) -> None:
    task = await waiting(owner, "a")
    owner.replica_up(facts())
    task.cancel()
    await cancelled(task)
    assert owner.snapshot().endings["cancelled"] == 1


async def test_placed_after_the_cancellation_before_the_task_ran(owner: LaneOwner) -> None:
    task = await waiting(owner, "a")
    task.cancel()
    owner.replica_up(facts())
    assert owner.snapshot().endings["cancelled"] == 1
    await cancelled(task)


async def test_the_place_of_a_cancelled_one_goes_to_the_next(owner: LaneOwner) -> None:
    tasks = [await waiting(owner, name) for name in "abcd"]
    owner.replica_up(facts(max_num_seqs=1))  # holds one, and one ahead
    tasks[0].cancel()
    await cancelled(tasks[0])
    placements = [await tasks[1], await tasks[2]]
    assert not tasks[3].done()
    for placement in placements:
        owner.release(placement.lease, Ending.FINISHED)
    owner.release((await tasks[3]).lease, Ending.FINISHED)


async def test_the_wait_runs_out(owner: LaneOwner) -> None:
    one = request("a", wait_s=0.05)
    start = time.monotonic()
    with pytest.raises(QueueTimeout):
        await wait(owner, one)
    assert 0.04 < time.monotonic() - start < 2


async def test_cancelled_in_the_moment_of_the_time_out(owner: LaneOwner) -> None:
    task = asyncio.create_task(wait(owner, request("a", wait_s=0.0)))
    await asyncio.sleep(0)
    owner._step()
    task.cancel()
    with pytest.raises((QueueTimeout, asyncio.CancelledError)):
        await task


async def test_refused_waits_again_and_first(owner: LaneOwner) -> None:
    owner.replica_up(facts("r1"))
    placement = await wait(owner, request("a"))
    other = asyncio.create_task(wait(owner, request("b")))
    third = asyncio.create_task(wait(owner, request("c")))
    await asyncio.sleep(0)
    owner.refused(placement.lease, ReplicaState.DRAINING)
    assert not owner.is_ready("r1")
    owner.replica_up(facts("r2"))
    again = await owner.placement(placement.request)
    assert (again.replica_id, again.lease.attempt) == ("r2", 2)
    for task in (other, third):
        owner.release((await task).lease, Ending.FINISHED)
    owner.release(again.lease, Ending.FINISHED)
    assert not owner.is_ready("r1")


async def test_cancelled_after_a_refusal(owner: LaneOwner) -> None:
    owner.replica_up(facts())
    placement = await wait(owner, request("a"))
    owner.refused(placement.lease, None)
    task = asyncio.create_task(owner.placement(placement.request))
    await asyncio.sleep(0)
    task.cancel()
    await cancelled(task)


async def test_a_lost_replica_tells_each_lease_once(owner: LaneOwner) -> None:
    owner.replica_up(facts(max_num_seqs=4))
    told = []
    leases = [(await wait(owner, request(name))).lease for name in "abc"]
    for lease in leases:
        owner.when_lost(lease, lambda lease=lease: told.append(lease.lease_id))  # type: ignore[misc]
    owner.release(leases[0], Ending.FINISHED)
    owner.replica_lost("r1")
    owner.replica_lost("r1")
    assert told == [leases[1].lease_id, leases[2].lease_id]
    for lease in leases:
        owner.release(lease, Ending.FINISHED)
        assert owner.url_of(lease) is None
    assert owner.snapshot().endings == {"finished": 1, "cancelled": 0, "failed": 2, "refused": 0}


async def test_refused_after_the_loss(owner: LaneOwner) -> None:
    owner.replica_up(facts())
    placement = await wait(owner, request("a"))
    owner.replica_lost("r1")
    owner.refused(placement.lease, None)
    owner.replica_up(facts("r2"))
    again = await owner.placement(placement.request)
    assert again.replica_id == "r2"
    owner.release(again.lease, Ending.FINISHED)


async def test_refused_after_the_loss_with_a_full_lane() -> None:
    owner = LaneOwner(MODEL, Policy(max_waiting=1))
    owner.replica_up(facts())
    placement = await wait(owner, request("a"))
    owner.replica_lost("r1")
    other = await waiting(owner, "b")
    owner.refused(placement.lease, None)
    with pytest.raises(Rejected):
        await owner.placement(placement.request)
    other.cancel()
    await cancelled(other)
    assert not owner._waiters


async def test_words_about_unknown_replicas_change_nothing(owner: LaneOwner) -> None:
    owner.replica_state("nobody", None)
    owner.replica_state("nobody", ReplicaState.DRAINING)
    owner.replica_lost("nobody")
    assert not owner.snapshot().replicas
    assert owner.ready_in_turn() == []


async def test_ready_replicas_take_turns(owner: LaneOwner) -> None:
    for name in ("r1", "r2", "r3"):
        owner.replica_up(facts(name))
    assert {owner.ready_in_turn()[0].replica_id for _ in range(3)} == {"r1", "r2", "r3"}
    assert len(owner.ready_in_turn()) == 3


@pytest.mark.parametrize("seed", range(4))
async def test_a_storm(owner: LaneOwner, seed: int) -> None:
    """Requests that finish, are cancelled, refused or lost at random, while replicas come and go."""
    dice = random.Random(seed)
    names = ("r1", "r2", "r3")

    async def run(name: str) -> None:
        one = request(name, wait_s=dice.choice([0.02, 1.0]))
        try:
            placement = await wait(owner, one)
            while True:
                owner.when_lost(placement.lease, lambda: None)
                await asyncio.sleep(dice.random() * 0.01)
                if dice.random() < 0.7:
                    break
                owner.refused(placement.lease, dice.choice([None, ReplicaState.DRAINING]))
                placement = await owner.placement(one)
        except QueueTimeout:
            return
        owner.first_token(placement.lease)
        owner.release(placement.lease, dice.choice([Ending.FINISHED, Ending.CANCELLED, Ending.FAILED]))

    async def weather() -> None:
        while True:
            name = dice.choice(names)
            dice.choice([lambda: owner.replica_up(facts(name, 2)), lambda: owner.replica_lost(name), lambda: owner.replica_state(name, None)])()  # noqa: B023
            await asyncio.sleep(dice.random() * 0.01)

    winds = asyncio.create_task(weather())
    tasks = [asyncio.create_task(run(str(number))) for number in range(100)]
    for task in dice.sample(tasks, 40):
        await asyncio.sleep(dice.random() * 0.005)
        task.cancel()
    await asyncio.sleep(0.1)
    winds.cancel()
    for name in names:
        owner.replica_up(facts(name, 4))
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert all(result is None or isinstance(result, asyncio.CancelledError) for result in results), results
    for name in names:
        owner.replica_lost(name)
