"""The dispatcher and owners that follow one another, or are elsewhere: what each of them learns of cordons, starts,
leases and first tokens."""

import asyncio
import time

import pytest

from deployments.ownership.dispatcher import Dispatcher
from deployments.ownership.lane_owner import LaneOwner
from deployments.ownership.record import QueueTimeout, RequestState
from deployments.scheduling import Ending, RejectCause, SchedulingPolicy
from tests.deployments.ownership.dispatcher_rig import MODEL, books, facts, make_dispatcher, request, wait, waiting
from tests.deployments.ownership.lane_owner_rig import Submitter


async def test_the_next_owner_knows_of_cordons_and_starts() -> None:
    dispatcher = Dispatcher(MODEL, "here")
    dispatcher.cordon(frozenset({"r1"}))
    dispatcher.expect_replica(time.monotonic() + 60.0)
    owner = LaneOwner(SchedulingPolicy(), replicas=dispatcher.replicas, records=dispatcher.records)
    dispatcher.on_ready = owner.replica_up
    dispatcher.follow(owner)
    dispatcher.replica_up(facts())
    assert [replica.status for replica in books(dispatcher).replicas] == ["cordoned"]
    assert not dispatcher.is_ready
    assert not (await dispatcher.submit(request("hasty", 10.0))).accepted
    dispatcher.cordon(frozenset())
    assert dispatcher.is_ready
    dispatcher.release((await wait(dispatcher, request("a"))).lease, Ending.FINISHED)


async def test_a_lease_that_was_declared_to_the_next_owner_and_overtaken_is_not_remembered_for_ever() -> None:
    """Its request's wait is over in the same moment, so nobody submits it again."""
    dispatcher = make_dispatcher()
    dispatcher.replica_up(facts())
    placement = await wait(dispatcher, request("a", wait_s=0.3))
    await asyncio.sleep(0.31)
    owner = LaneOwner(SchedulingPolicy(), epoch=2, replicas=dispatcher.replicas, records=dispatcher.records)
    dispatcher.follow(owner)
    assert owner.records.counts[RequestState.DECLARED] == 1
    dispatcher.overtaken(placement.lease, 2)
    with pytest.raises(QueueTimeout):
        await dispatcher.placement(placement.request)
    assert owner.records.live == 0
    assert not len(dispatcher)


async def test_another_gateway_that_submits_what_a_client_here_waits_for_is_rejected(dispatcher: Dispatcher) -> None:
    """A recorded hop came to two gateways of the cell, one of which owns the model."""
    assert dispatcher.own is not None
    task, other = await waiting(dispatcher, "q"), Submitter()
    dispatcher.own.submit(other, request("q"))
    assert [admission.cause for admission in other.admissions] == [RejectCause.DUPLICATE_ID]
    dispatcher.replica_up(facts())
    dispatcher.release((await task).lease, Ending.FINISHED)


async def test_a_refused_request_waits_for_an_owner_where_there_is_none() -> None:
    dispatcher = make_dispatcher()
    dispatcher.replica_up(facts())
    placement = await wait(dispatcher, request("q"))
    dispatcher.follow(None)
    dispatcher.refused(placement.lease, None)
    again = asyncio.create_task(dispatcher.placement(placement.request))
    owner = LaneOwner(SchedulingPolicy(), epoch=2, replicas=dispatcher.replicas, records=dispatcher.records)
    dispatcher.follow(owner)
    owner.replica_up(facts())
    lease = (await again).lease
    assert (lease.attempt_id, dispatcher.handed_on) == ("q-2", 1)
    dispatcher.release(lease, Ending.FINISHED)
    assert len(dispatcher) == 0
