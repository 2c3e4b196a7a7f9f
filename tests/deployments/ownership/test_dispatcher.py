"""The dispatcher's races with its owner: whatever happens in one moment, no lease, no lane entry and no pending request
is left."""

import asyncio
import dataclasses
import random

import pytest

from deployments.ownership.dispatcher import Dispatcher
from deployments.ownership.record import QueueTimeout, Rejected
from deployments.protocol import Finished, ReplicaState, Usage
from deployments.scheduling import Binding, Ending, Placement, RejectCause, SchedulingPolicy
from tests.deployments.ownership.dispatcher_rig import books, cancelled, facts, request, wait, waiting


async def test_refused_waits_again_and_first(dispatcher: Dispatcher) -> None:
    """It waits again, and comes before two that wait with earlier deadlines: the next replica has room for one of these
    beside it."""
    dispatcher.replica_up(facts("r1", max_num_seqs=2))
    patient = request("a")
    patient = dataclasses.replace(patient, deadline_s=patient.deadline_s + 30.0)
    placement, running = await wait(dispatcher, patient), await wait(dispatcher, request("b"))
    waiting = [asyncio.create_task(wait(dispatcher, request(name))) for name in "cd"]
    await asyncio.sleep(0)
    assert not any(task.done() for task in waiting), "r1 is full"
    dispatcher.refused(placement.lease, ReplicaState.DRAINING)
    assert not dispatcher.replicas.is_ready("r1")
    again = asyncio.create_task(dispatcher.placement(placement.request))
    await asyncio.sleep(0)
    assert not again.done(), "it waits again"
    dispatcher.replica_up(facts("r2", max_num_seqs=2))
    first = await asyncio.wait_for(again, 10.0)
    assert (first.replica_id, first.lease.attempt) == ("r2", 2)
    second = await asyncio.wait_for(waiting[0], 10.0)
    await asyncio.sleep(0)
    assert not waiting[1].done(), "it came first: one of the two that waited still does"
    dispatcher.release(first.lease, Ending.FINISHED)
    third = await waiting[1]
    for lease in (running.lease, second.lease, third.lease):
        dispatcher.release(lease, Ending.FINISHED)


async def test_what_is_longer_than_its_replicas_context_waits_for_a_longer_one(dispatcher: Dispatcher) -> None:
    dispatcher.replica_up(facts())
    placement = await wait(dispatcher, request("a"))
    dispatcher.too_long(placement.lease)
    again = await dispatcher.placement(placement.request)
    assert (again.request.max_prompt_tokens, again.lease.attempt) == (1_025, 2)
    dispatcher.release(again.lease, Ending.FINISHED)
    assert len(dispatcher) == 0


async def test_a_lost_replica_tells_each_lease_once(dispatcher: Dispatcher) -> None:
    dispatcher.replica_up(facts(max_num_seqs=4))
    reported = []
    leases = [(await wait(dispatcher, request(name))).lease for name in "abc"]
    for lease in leases:
        dispatcher.when_lost(lease, lambda lease=lease: reported.append(lease.lease_id))  # type: ignore[misc]
    dispatcher.release(leases[0], Ending.FINISHED)
    dispatcher.replica_lost("r1")
    dispatcher.replica_lost("r1")
    assert reported == [leases[1].lease_id, leases[2].lease_id]
    for lease in leases:
        dispatcher.release(lease, Ending.FINISHED)
        assert dispatcher.url_of(lease) is None
    assert books(dispatcher).endings == {"finished": 1, "cancelled": 0, "failed": 2, "refused": 0}


async def test_refused_after_the_loss_with_a_full_lane(dispatcher: Dispatcher) -> None:
    """It was admitted once: the full lane takes it."""
    assert dispatcher.own is not None
    dispatcher.own.configure(SchedulingPolicy(max_waiting=1), Binding())
    dispatcher.replica_up(facts())
    placement = await wait(dispatcher, request("a"))
    dispatcher.replica_lost("r1")
    other = await waiting(dispatcher, "b")
    dispatcher.refused(placement.lease, None)
    dispatcher.replica_up(facts("r2"))
    again = await dispatcher.placement(placement.request)
    assert again.lease.attempt_id == "a-2"
    dispatcher.release(again.lease, Ending.FINISHED)
    other.cancel()
    await cancelled(other)


@pytest.mark.parametrize("seed", range(4))
async def test_a_storm(dispatcher: Dispatcher, seed: int) -> None:
    """Requests that finish, are cancelled, refused or lost at random, while replicas come and go."""
    dice = random.Random(seed)
    names = ("r1", "r2", "r3")
    turned_away: list[tuple[RejectCause | None, int]] = []

    async def run(name: str) -> None:
        one = request(name, wait_s=dice.choice([0.02, 1.0]))
        placements = 0
        try:
            placement = await wait(dispatcher, one)
            while True:
                placements += 1
                dispatcher.when_lost(placement.lease, lambda: None)
                try:
                    await asyncio.sleep(dice.random() * 0.01)
                except asyncio.CancelledError:
                    dispatcher.release(placement.lease, Ending.CANCELLED)
                    raise
                if dice.random() < 0.7:
                    break
                dispatcher.refused(placement.lease, dice.choice([None, ReplicaState.DRAINING]))
                placement = await dispatcher.placement(one)
        except QueueTimeout:
            return
        except Rejected as rejected:
            turned_away.append((rejected.admission.cause, placements))
            return
        dispatcher.first_token(placement.lease)
        dispatcher.release(placement.lease, dice.choice([Ending.FINISHED, Ending.CANCELLED, Ending.FAILED]))

    async def weather() -> None:
        while True:
            name = dice.choice(names)
            dice.choice(
                [
                    lambda name=name: dispatcher.replica_up(facts(name, 2)),
                    lambda name=name: dispatcher.replica_lost(name),
                    lambda name=name: dispatcher.replica_state(name, None),
                ]
            )()
            await asyncio.sleep(dice.random() * 0.01)

    winds = asyncio.create_task(weather())
    tasks = [asyncio.create_task(run(str(number))) for number in range(100)]
    for task in dice.sample(tasks, 40):
        await asyncio.sleep(dice.random() * 0.005)
        task.cancel()
    await asyncio.sleep(0.1)
    winds.cancel()
    for name in names:
        dispatcher.replica_up(facts(name, 4))
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert all(result is None or isinstance(result, asyncio.CancelledError) for result in results), results
    # Only what ran when two replicas were lost, which looks like a query of death.
    assert all(cause is RejectCause.QUERY_OF_DEATH and placements >= 2 for cause, placements in turned_away)
    for name in names:
        dispatcher.replica_lost(name)


def finished(placement: Placement, sequences: int = 1) -> Finished:
    return Finished(placement.lease.attempt_id, 200, Usage(10, 0, 5, 0, sequences, 0.1, 0.1, 0.0), 0.1, 0.2)


async def test_an_answer_that_was_sent_as_a_whole_outlives_its_replica(dispatcher: Dispatcher) -> None:
    """A replica that has drained goes while a slow client still reads: that is no loss, neither for the client nor in
    the books."""
    dispatcher.replica_up(facts(max_num_seqs=4))
    whole, cut = await wait(dispatcher, request("whole")), await wait(dispatcher, request("cut"))
    lost: list[str] = []
    for placement in (whole, cut):
        dispatcher.when_lost(placement.lease, lambda name=placement.request.request_id: lost.append(name))  # type: ignore[misc]
    dispatcher.finished(finished(whole))
    dispatcher.finished(finished(cut, sequences=0))
    dispatcher.replica_lost("r1")
    assert lost == ["cut"]
    assert (books(dispatcher).endings["finished"], books(dispatcher).endings["failed"]) == (1, 1)
    for placement in (whole, cut):
        dispatcher.release(placement.lease, Ending.FINISHED)
    assert books(dispatcher).endings["finished"] == 1
