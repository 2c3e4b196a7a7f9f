"""The dispatcher and owners that follow one another, or are elsewhere: what each of them learns of cordons, starts,
leases and first tokens."""

import asyncio
import time

import pytest

from deployments.ownership.dispatcher import Dispatcher
from deployments.ownership.entries import EntryState
from deployments.ownership.lane_owner import LaneOwner
from deployments.ownership.pending_request import QueueTimeout
from deployments.protocol import FirstTokens
from deployments.scheduling import (
    Admission,
    AdmissionKind,
    Ending,
    Lease,
    PickReason,
    Placement,
    Request,
    SchedulingPolicy,
)
from tests.deployments.ownership.dispatcher_rig import MODEL, books, facts, make_dispatcher, request, wait


async def test_the_next_owner_knows_of_cordons_and_starts() -> None:
    dispatcher = Dispatcher(MODEL, "here")
    dispatcher.cordon(frozenset({"r1"}))
    dispatcher.expect_replica(time.monotonic() + 60.0)
    owner = LaneOwner(SchedulingPolicy(), replicas=dispatcher.replicas)
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
    owner = LaneOwner(SchedulingPolicy(), epoch=2, replicas=dispatcher.replicas)
    dispatcher.follow(owner)
    assert owner.entries.counts[EntryState.DECLARED] == 1
    dispatcher.overtaken(placement.lease, 2)
    with pytest.raises(QueueTimeout):
        await dispatcher.placement(placement.request)
    assert owner.entries.live == 0
    assert not len(dispatcher)


class Elsewhere:
    """An owner at another gateway: keeps what it is told of, and decides nothing."""

    epoch = 7

    def __init__(self) -> None:
        self.answered: list[str] = []

    def submit(self, submitter: Dispatcher, request: Request, admitted: bool = False, hop: object = None) -> None:
        submitter.admitted(request.request_id, Admission(AdmissionKind.QUEUE, "default"))

    def first_token(self, attempt_id: str) -> None:
        self.answered.append(attempt_id)

    def release(self, attempt_id: str, ending: Ending) -> None:
        pass


async def test_a_replicas_word_of_first_tokens_reaches_an_owner_elsewhere_once() -> None:
    """Of this gateway's own leases alone: whoever owns the model hears the replica, too."""
    dispatcher, owner = Dispatcher(MODEL, "here"), Elsewhere()
    dispatcher.follow(owner)  # type: ignore[arg-type]
    waits, runs = request("waits"), request("runs")
    for one in (waits, runs):
        assert (await dispatcher.submit(one)).accepted
    lease = Lease(0, runs, "r1", time.monotonic(), 2, 10, 20, 10, 0)
    dispatcher.placed(Placement(runs, lease, PickReason.LEAST_DECODE, "default", False, 0.0, None), "http://r1")
    dispatcher.first_tokens(FirstTokens(("waits-1", "runs-1", "elsewhere-1", "nonsense")))
    assert owner.answered == [], "one waits, one is an attempt before, two are not this gateway's"
    dispatcher.first_tokens(FirstTokens(("elsewhere-1", "runs-2")))
    dispatcher.first_tokens(FirstTokens(("runs-2",)))
    dispatcher.first_token(lease)  # the first byte of the answer comes after it
    assert owner.answered == ["runs-2"]


async def test_a_replicas_word_of_first_tokens_frees_its_prefill_budget_whoever_holds_the_lease(
    dispatcher: Dispatcher,
) -> None:
    dispatcher.replica_up(facts(max_num_seqs=4))
    own = dispatcher.own
    assert own is not None
    here = (await wait(dispatcher, request("here"))).lease
    another = Dispatcher(MODEL, "there")
    another.follow(own)
    there = (await wait(another, request("there"))).lease
    replica = own.scheduler.fleet.by_id["r1"]
    before = replica.prefill_tokens
    dispatcher.first_tokens(FirstTokens((there.attempt_id, here.attempt_id)))
    assert (before, replica.prefill_tokens) == (20, 0)
    dispatcher.release(here, Ending.FINISHED)
    another.release(there, Ending.FINISHED)
