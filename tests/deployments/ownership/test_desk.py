"""The desk's races with its owner: whatever happens in one moment, no lease, no lane entry and no ticket is left."""

import asyncio
import dataclasses
import random
import time
from collections.abc import AsyncIterator

import pytest

from cluster.spec import EngineSettings, Model
from deployments.ownership.desk import Desk
from deployments.ownership.entries import EntryState
from deployments.ownership.lane_owner import LaneOwner
from deployments.ownership.ticket import QueueTimeout, Rejected
from deployments.protocol import Finished, FirstTokens, ReplicaFacts, ReplicaState
from deployments.scheduling import (
    Admission,
    AdmissionKind,
    Binding,
    Ending,
    Lease,
    PickReason,
    Placement,
    Policy,
    RejectCause,
    Request,
    Snapshot,
)

MODEL = Model(name="demo", source="/nowhere", settings=EngineSettings(max_model_len=1_024))


def facts(name: str = "r1", max_num_seqs: int = 1) -> ReplicaFacts:
    return ReplicaFacts(name, "demo", f"http://{name}", 1, "n", "generate", 1_024, max_num_seqs, 2_048, 65_536)


def request(name: str, wait_s: float = 60.0) -> Request:
    now = time.monotonic()
    return Request(name, 10, 10, now, now + 1.0, now + wait_s)


def make_desk(max_waiting: int = 100) -> Desk:
    """A desk whose gateway owns the model, and takes replicas at their word."""
    desk = Desk(MODEL, "here")
    owner = LaneOwner(Policy(max_waiting=max_waiting), replicas=desk.replicas)
    desk.on_ready = owner.replica_up
    desk.follow(owner)
    return desk


def books(desk: Desk) -> Snapshot:
    """The owner's books."""
    snapshot = desk.snapshot()
    assert snapshot is not None
    return snapshot


@pytest.fixture
async def desk() -> AsyncIterator[Desk]:
    """A desk whose books must balance in the end."""
    desk = make_desk()
    yield desk
    for _ in range(3):
        await asyncio.sleep(0)
    snapshot = books(desk)
    assert snapshot.placed + snapshot.adopted == sum(snapshot.endings.values())
    assert sum(lane.waiting for lane in snapshot.lanes) == 0
    assert not len(desk)
    assert desk.own is not None
    assert not desk.own.entries.live


async def wait(desk: Desk, one: Request) -> Placement:
    assert (await desk.submit(one)).accepted
    return await desk.placement(one)


async def waiting(desk: Desk, name: str) -> asyncio.Task[Placement]:
    task = asyncio.create_task(wait(desk, request(name)))
    await asyncio.sleep(0)
    return task


async def cancelled(task: asyncio.Task[Placement]) -> None:
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_cancelled_while_waiting(desk: Desk) -> None:
    task = await waiting(desk, "a")
    task.cancel()
    await cancelled(task)
    desk.replica_up(facts())
    assert books(desk).placed == 0


async def test_cancelled_after_the_placement_before_the_task_ran(desk: Desk) -> None:
    task = await waiting(desk, "a")
    desk.replica_up(facts())
    task.cancel()
    await cancelled(task)
    assert books(desk).endings["cancelled"] == 1


async def test_placed_after_the_cancellation_before_the_task_ran(desk: Desk) -> None:
    task = await waiting(desk, "a")
    task.cancel()
    desk.replica_up(facts())
    assert books(desk).endings["cancelled"] == 1
    await cancelled(task)


async def test_the_place_of_a_cancelled_one_goes_to_the_next(desk: Desk) -> None:
    tasks = [await waiting(desk, name) for name in "abcd"]
    desk.replica_up(facts(max_num_seqs=2))
    tasks[0].cancel()
    await cancelled(tasks[0])
    placements = [await tasks[1], await tasks[2]]
    assert not tasks[3].done()
    for placement in placements:
        desk.release(placement.lease, Ending.FINISHED)
    desk.release((await tasks[3]).lease, Ending.FINISHED)


async def test_the_wait_runs_out(desk: Desk) -> None:
    one = request("a", wait_s=0.05)
    start = time.monotonic()
    with pytest.raises(QueueTimeout):
        await wait(desk, one)
    assert 0.04 < time.monotonic() - start < 2


async def test_cancelled_in_the_moment_of_the_time_out(desk: Desk) -> None:
    task = asyncio.create_task(wait(desk, request("a", wait_s=0.0)))
    await asyncio.sleep(0)
    desk.own._step()  # type: ignore[union-attr]
    task.cancel()
    with pytest.raises((QueueTimeout, asyncio.CancelledError)):
        await task


async def test_refused_waits_again_and_first(desk: Desk) -> None:
    """It waits again, and comes before two that wait with earlier deadlines: the next replica has room for one of these beside it."""
    desk.replica_up(facts("r1", max_num_seqs=2))
    patient = request("a")
    patient = dataclasses.replace(patient, deadline_s=patient.deadline_s + 30.0)
    placement, running = await wait(desk, patient), await wait(desk, request("b"))
    waiting = [asyncio.create_task(wait(desk, request(name))) for name in "cd"]
    await asyncio.sleep(0)
    assert not any(task.done() for task in waiting), "r1 is full"
    desk.refused(placement.lease, ReplicaState.DRAINING)
    assert not desk.replicas.is_ready("r1")
    again = asyncio.create_task(desk.placement(placement.request))
    await asyncio.sleep(0)
    assert not again.done(), "it waits again"
    desk.replica_up(facts("r2", max_num_seqs=2))
    first = await asyncio.wait_for(again, 10.0)
    assert (first.replica_id, first.lease.attempt) == ("r2", 2)
    second = await asyncio.wait_for(waiting[0], 10.0)
    await asyncio.sleep(0)
    assert not waiting[1].done(), "it came first: one of the two that waited still does"
    desk.release(first.lease, Ending.FINISHED)
    third = await waiting[1]
    for lease in (running.lease, second.lease, third.lease):
        desk.release(lease, Ending.FINISHED)


async def test_cancelled_after_a_refusal(desk: Desk) -> None:
    desk.replica_up(facts())
    placement = await wait(desk, request("a"))
    desk.refused(placement.lease, None)
    task = asyncio.create_task(desk.placement(placement.request))
    await asyncio.sleep(0)
    task.cancel()
    await cancelled(task)


async def test_a_lost_replica_tells_each_lease_once(desk: Desk) -> None:
    desk.replica_up(facts(max_num_seqs=4))
    told = []
    leases = [(await wait(desk, request(name))).lease for name in "abc"]
    for lease in leases:
        desk.when_lost(lease, lambda lease=lease: told.append(lease.lease_id))  # type: ignore[misc]
    desk.release(leases[0], Ending.FINISHED)
    desk.replica_lost("r1")
    desk.replica_lost("r1")
    assert told == [leases[1].lease_id, leases[2].lease_id]
    for lease in leases:
        desk.release(lease, Ending.FINISHED)
        assert desk.url_of(lease) is None
    assert books(desk).endings == {"finished": 1, "cancelled": 0, "failed": 2, "refused": 0}


async def test_refused_after_the_loss(desk: Desk) -> None:
    desk.replica_up(facts())
    placement = await wait(desk, request("a"))
    desk.replica_lost("r1")
    desk.refused(placement.lease, None)
    desk.replica_up(facts("r2"))
    again = await desk.placement(placement.request)
    assert again.replica_id == "r2"
    desk.release(again.lease, Ending.FINISHED)


async def test_refused_after_the_loss_with_a_full_lane(desk: Desk) -> None:
    """It was admitted once: the full lane takes it."""
    assert desk.own is not None
    desk.own.configure(Policy(max_waiting=1), Binding())
    desk.replica_up(facts())
    placement = await wait(desk, request("a"))
    desk.replica_lost("r1")
    other = await waiting(desk, "b")
    desk.refused(placement.lease, None)
    desk.replica_up(facts("r2"))
    again = await desk.placement(placement.request)
    assert again.lease.engine_id == "a-2"
    desk.release(again.lease, Ending.FINISHED)
    other.cancel()
    await cancelled(other)


async def test_words_about_unknown_replicas_change_nothing(desk: Desk) -> None:
    desk.replica_state("nobody", None)
    desk.replica_state("nobody", ReplicaState.DRAINING)
    desk.replica_lost("nobody")
    assert not books(desk).replicas
    assert desk.replicas.ready_in_turn() == []


async def test_ready_replicas_take_turns(desk: Desk) -> None:
    for name in ("r1", "r2", "r3"):
        desk.replica_up(facts(name))
    assert {desk.replicas.ready_in_turn()[0].replica_id for _ in range(3)} == {"r1", "r2", "r3"}
    assert len(desk.replicas.ready_in_turn()) == 3


@pytest.mark.parametrize("seed", range(4))
async def test_a_storm(desk: Desk, seed: int) -> None:
    """Requests that finish, are cancelled, refused or lost at random, while replicas come and go."""
    dice = random.Random(seed)
    names = ("r1", "r2", "r3")

    async def run(name: str) -> None:
        one = request(name, wait_s=dice.choice([0.02, 1.0]))
        try:
            placement = await wait(desk, one)
            while True:
                desk.when_lost(placement.lease, lambda: None)
                try:
                    await asyncio.sleep(dice.random() * 0.01)
                except asyncio.CancelledError:
                    desk.release(placement.lease, Ending.CANCELLED)
                    raise
                if dice.random() < 0.7:
                    break
                desk.refused(placement.lease, dice.choice([None, ReplicaState.DRAINING]))
                placement = await desk.placement(one)
        except QueueTimeout:
            return
        desk.first_token(placement.lease)
        desk.release(placement.lease, dice.choice([Ending.FINISHED, Ending.CANCELLED, Ending.FAILED]))

    async def weather() -> None:
        while True:
            name = dice.choice(names)
            dice.choice([lambda: desk.replica_up(facts(name, 2)), lambda: desk.replica_lost(name), lambda: desk.replica_state(name, None)])()  # noqa: B023
            await asyncio.sleep(dice.random() * 0.01)

    winds = asyncio.create_task(weather())
    tasks = [asyncio.create_task(run(str(number))) for number in range(100)]
    for task in dice.sample(tasks, 40):
        await asyncio.sleep(dice.random() * 0.005)
        task.cancel()
    await asyncio.sleep(0.1)
    winds.cancel()
    for name in names:
        desk.replica_up(facts(name, 4))
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert all(result is None or isinstance(result, asyncio.CancelledError) for result in results), results
    for name in names:
        desk.replica_lost(name)


def finished(placement: Placement, sequences: int = 1) -> Finished:
    return Finished(placement.lease.engine_id, 200, sequences, 10, 0, 5, 0, 0.0, 0.1, 0.1, 0.1, 0.2)


async def test_an_answer_that_was_sent_as_a_whole_outlives_its_replica(desk: Desk) -> None:
    """A replica that has drained goes while a slow client still reads: that is no loss, neither for the client nor in the books."""
    desk.replica_up(facts(max_num_seqs=4))
    whole, cut = await wait(desk, request("whole")), await wait(desk, request("cut"))
    lost: list[str] = []
    for placement in (whole, cut):
        desk.when_lost(placement.lease, lambda name=placement.request.request_id: lost.append(name))  # type: ignore[misc]
    desk.finished(finished(whole))
    desk.finished(finished(cut, sequences=0))
    desk.replica_lost("r1")
    assert lost == ["cut"]
    assert (books(desk).endings["finished"], books(desk).endings["failed"]) == (1, 1)
    for placement in (whole, cut):
        desk.release(placement.lease, Ending.FINISHED)
    assert books(desk).endings["finished"] == 1


async def test_one_that_waits_in_vain_is_turned_away(desk: Desk) -> None:
    hasty, patient = asyncio.create_task(wait(desk, request("hasty", 10.0))), asyncio.create_task(wait(desk, request("patient", 500.0)))
    await asyncio.sleep(0)
    desk.expect_replica(time.monotonic() + 60.0)
    with pytest.raises(Rejected) as rejected:
        await hasty
    assert rejected.value.admission.cause is RejectCause.STARTING
    assert not patient.done()
    desk.expect_replica(time.monotonic() + 60.0)  # a moment more or less is no news
    desk.replica_up(facts())
    desk.release((await patient).lease, Ending.FINISHED)


async def test_the_next_owner_knows_of_cordons_and_starts() -> None:
    desk = Desk(MODEL, "here")
    desk.cordon(frozenset({"r1"}))
    desk.expect_replica(time.monotonic() + 60.0)
    owner = LaneOwner(Policy(), replicas=desk.replicas)
    desk.on_ready = owner.replica_up
    desk.follow(owner)
    desk.replica_up(facts())
    assert [replica.status for replica in books(desk).replicas] == ["cordoned"]
    assert not desk.is_ready
    assert not (await desk.submit(request("hasty", 10.0))).accepted
    desk.cordon(frozenset())
    assert desk.is_ready
    desk.release((await wait(desk, request("a"))).lease, Ending.FINISHED)


async def test_a_lease_that_was_declared_to_the_next_owner_and_overtaken_is_not_remembered_for_ever() -> None:
    """Its request's wait is over in the same moment, so nobody submits it again."""
    desk = make_desk()
    desk.replica_up(facts())
    placement = await wait(desk, request("a", wait_s=0.02))
    await asyncio.sleep(0.03)
    owner = LaneOwner(Policy(), epoch=2, replicas=desk.replicas)
    desk.follow(owner)
    assert owner.entries.counts[EntryState.DECLARED] == 1
    desk.overtaken(placement.lease, 2)
    with pytest.raises(QueueTimeout):
        await desk.placement(placement.request)
    assert owner.entries.live == 0
    assert not len(desk)


class Elsewhere:
    """An owner at another gateway: keeps what it is told of, and decides nothing."""

    epoch = 7

    def __init__(self) -> None:
        self.answered: list[str] = []

    def submit(self, holder: Desk, request: Request, admitted: bool = False) -> None:
        holder.admitted(request.request_id, Admission(AdmissionKind.QUEUE, "default"))

    def first_token(self, engine_id: str) -> None:
        self.answered.append(engine_id)

    def release(self, engine_id: str, ending: Ending) -> None:
        pass


async def test_a_replicas_word_of_first_tokens_reaches_an_owner_elsewhere_once() -> None:
    """Of this gateway's own leases alone: whoever owns the model hears the replica, too."""
    desk, owner = Desk(MODEL, "here"), Elsewhere()
    desk.follow(owner)  # type: ignore[arg-type]
    waits, runs = request("waits"), request("runs")
    for one in (waits, runs):
        assert (await desk.submit(one)).accepted
    lease = Lease(0, runs, "r1", time.monotonic(), 2, 10, 20, 10, 0)
    desk.placed(Placement(runs, lease, PickReason.LEAST_DECODE, "default", False, 0.0, None), "http://r1")
    desk.first_tokens(FirstTokens(("waits-1", "runs-1", "elsewhere-1", "nonsense")))
    assert owner.answered == [], "one waits, one is an attempt before, two are not this gateway's"
    desk.first_tokens(FirstTokens(("elsewhere-1", "runs-2")))
    desk.first_tokens(FirstTokens(("runs-2",)))
    desk.first_token(lease)  # the first byte of the answer comes after it
    assert owner.answered == ["runs-2"]


async def test_a_replicas_word_of_first_tokens_frees_its_prefill_budget_whoever_holds_the_lease(desk: Desk) -> None:
    desk.replica_up(facts(max_num_seqs=4))
    own = desk.own
    assert own is not None
    here = (await wait(desk, request("here"))).lease
    another = Desk(MODEL, "there")
    another.follow(own)
    there = (await wait(another, request("there"))).lease
    replica = own.scheduler.fleet.by_id["r1"]
    before = replica.prefill_tokens
    desk.first_tokens(FirstTokens((there.engine_id, here.engine_id)))
    assert (before, replica.prefill_tokens) == (20, 0)
    desk.release(here, Ending.FINISHED)
    another.release(there, Ending.FINISHED)
