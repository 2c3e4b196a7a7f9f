"""The dispatcher's races with its owner: whatever happens in one moment, no lease, no lane entry and no pending request
is left."""

import asyncio
from dataclasses import replace

import pytest

from deployments.ladder_stats import LadderMode, LadderOrder
from deployments.ownership.dispatcher import Dispatcher
from deployments.ownership.lane_owner import LaneOwner
from deployments.protocol import Finished, Usage
from deployments.scheduling import Binding, Ending, Placement, RejectCause, Rung, SchedulingPolicy
from deployments.scheduling.ladder import LadderStep
from tests.deployments.ownership.dispatcher_rig import books, cancelled, facts, request, wait, waiting
from tests.deployments.ownership.lane_owner_rig import Submitter


@pytest.mark.parametrize(("lost", "most"), [(False, 1_025), (True, 900)])
async def test_what_is_longer_than_its_replicas_context_waits_for_a_longer_one(
    dispatcher: Dispatcher, lost: bool, most: int
) -> None:
    """The context of one that is lost meanwhile is not known."""
    dispatcher.replica_up(facts())
    placement = await wait(dispatcher, replace(request("a"), max_prompt_tokens=900))
    if lost:
        dispatcher.replica_lost("r1")
        dispatcher.replica_up(facts("r2"))
    dispatcher.too_long(placement.lease)
    again = await dispatcher.placement(placement.request)
    assert (again.request.max_prompt_tokens, again.lease.attempt) == (most, 2)
    dispatcher.release(again.lease, Ending.FINISHED)
    assert len(dispatcher) == 0


async def test_what_was_clamped_is_so_to_a_later_owner(dispatcher: Dispatcher) -> None:
    assert dispatcher.own is not None
    ladder = (LadderStep(Rung.CLAMP, "interactive", 5),)
    dispatcher.own.configure(SchedulingPolicy(ladder=ladder, allowed={"interactive": 0.1}), Binding())
    dispatcher.own.order_ladder(LadderOrder(LadderMode.AT, ladder[0].name))
    task = asyncio.create_task(wait(dispatcher, replace(request("a"), rungs=(Rung.CLAMP,))))
    await asyncio.sleep(0)
    owner = LaneOwner(SchedulingPolicy(), Binding(), 2, dispatcher.replicas, records=dispatcher.records)
    dispatcher.on_ready = owner.replica_up
    dispatcher.follow(owner)
    dispatcher.replica_up(facts())
    placement = await task
    assert (placement.request.max_tokens, placement.request.clamped) == (5, True)
    dispatcher.release(placement.lease, Ending.FINISHED)


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


async def test_another_gateway_that_submits_what_a_client_here_waits_for_is_rejected(dispatcher: Dispatcher) -> None:
    """A recorded hop came to two gateways of the cell, one of which owns the model."""
    assert dispatcher.own is not None
    task, other = await waiting(dispatcher, "q"), Submitter()
    dispatcher.own.submit(other, request("q"))
    assert [admission.cause for admission in other.admissions] == [RejectCause.DUPLICATE_ID]
    dispatcher.replica_up(facts())
    dispatcher.release((await task).lease, Ending.FINISHED)


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
