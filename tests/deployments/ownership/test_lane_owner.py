"""The live shell of the scheduler, event by event: who is told what, which lease stands, what a replica's word
changes."""

import time
from dataclasses import replace

import pytest

from deployments.ownership.lane_owner import LaneOwner
from deployments.ownership.record import RequestState
from deployments.protocol import ReplicaState
from deployments.scheduling import Ending, LadderMode, LadderOrder, LanePolicy, RejectCause, SchedulingPolicy
from deployments.scheduling.replica import ReplicaStatus
from tests.deployments.gateway.rig import until
from tests.deployments.ownership.lane_owner_rig import Submitter, account, facts, request, running, state
from tests.deployments.ownership.replayed_log import ReplayedLog


async def test_an_id_that_one_gateway_holds_is_taken_from_no_other(owner: LaneOwner, submitter: Submitter) -> None:
    other = Submitter()
    owner.hold(submitter, "q-1")
    owner.submit(other, request())
    assert [one.cause for one in other.admissions] == [RejectCause.DUPLICATE_ID]
    assert state(owner) is RequestState.DECLARED
    owner.release("q-1", Ending.FINISHED)


async def test_an_account_of_something_unknown_is_never_adopted_afterwards(owner: LaneOwner) -> None:
    owner.finished(account("q-1"))
    owner.finished(account("tokenizer"))
    assert (state(owner), sum(owner.records.counts.values())) == (RequestState.CLOSED, 1)
    owner.replica_up(facts(), [running()])
    assert (owner.snapshot().adopted, owner.reconciled) == (0, 0)
    owner.replica_up(facts(), [running(attempt=2)])
    assert (owner.snapshot().adopted, state(owner)) == (1, RequestState.ORPHANED)


async def test_a_wait_ends_by_the_owners_own_timer(owner: LaneOwner, submitter: Submitter) -> None:
    owner.replica_state("r1", None)
    owner.submit(submitter, request("later", wait_s=0.05))
    owner.submit(submitter, request("sooner", wait_s=0.01))
    await until(lambda: len(submitter.expiries) == 2)
    assert submitter.expiries == ["sooner", "later"]
    assert not [*owner.records]


async def test_a_replica_that_died_gets_nothing_new_until_it_speaks_and_its_requests_are_looked_into(
    owner: LaneOwner, submitter: Submitter
) -> None:
    owner.replicas.up(facts("r2"))
    owner.replica_up(facts("r2"))
    owner.submit(submitter, request())
    (lease,) = submitter.leases
    for attempt_id in ("nobody-1", "q-2", "nonsense"):
        owner.died(attempt_id)
    assert {replica.status for replica in owner.scheduler.fleet.by_id.values()} == {ReplicaStatus.READY}
    owner.died("q-1")
    assert owner.scheduler.fleet.by_id[lease.replica_id].status is ReplicaStatus.UNRESPONSIVE
    assert not owner.replicas.is_ready(lease.replica_id)
    owner.release("q-1", Ending.FAILED)
    owner.replica_lost(lease.replica_id)
    assert [reported.key for reported in owner.scheduler.suspects.all(time.monotonic())] == ["q"]


async def test_a_submitter_that_knows_of_a_later_attempt_waits_for_the_one_after(
    owner: LaneOwner, submitter: Submitter
) -> None:
    owner.replica_state("r1", None)
    for attempts in (0, 2, 2):
        owner.submit(submitter, request(attempts=attempts))
    owner.replica_up(facts())
    assert submitter.attempt_ids == ["q-3"]
    assert (owner.snapshot().submitted, len(owner.scheduler.lanes.jobs)) == (2, 0)


async def test_orders_and_starts_reach_the_scheduler_and_are_replayed() -> None:
    lanes = LanePolicy("short", 200), LanePolicy("long")
    policy = SchedulingPolicy(lanes, groups={"short": ("a",), "long": ("b",)}, contexts={"a": 500, "b": 900})
    owner, submitter = LaneOwner(policy, decision_log=ReplayedLog()), Submitter()
    owner.cordon(frozenset({"r1"}))
    owner.replica_up(facts())
    for word in (ReplicaState.DRAINING, None):
        owner.replica_state("r1", word)
    owner.order_ladder(LadderOrder(LadderMode.AT_MOST, "shed:batch"))
    assert owner.scheduler.ladder.ordered == LadderOrder(LadderMode.AT_MOST, "shed:batch")
    assert (owner.scheduler.is_draining("r1"), set(owner.scheduler.cordoned)) == (True, {"r1"})
    owner.expect_replica(time.monotonic() + 300.0, "b")
    for name, prompt in (("a", 100), ("b", 800)):
        owner.submit(submitter, replace(request(name), prompt_tokens=prompt))
    assert [admission.cause for admission in submitter.admissions] == [None, RejectCause.STARTING]
    owner.close()


# What ran under an owner before: its gateway and its replica both have to say so.
async def test_a_lease_of_an_owner_before_is_booked_when_both_have_said_so(
    owner: LaneOwner, submitter: Submitter
) -> None:
    owner.hold(submitter, "q-3")
    assert (state(owner), owner.snapshot().adopted) == (RequestState.DECLARED, 0)
    owner.replica_up(facts(), [running(attempt=3), running("r", 1, started=True)])
    assert (state(owner), state(owner, "r")) == (RequestState.RUNNING, RequestState.ORPHANED)
    assert (owner.snapshot().adopted, owner.reconciled, owner.records.replicas_of_orphans) == (2, 2, {"r1"})
    assert owner.scheduler.fleet.by_id["r1"].prefill_tokens == 10, "the other has begun to answer"
    owner.hold(submitter, "r-1")
    assert (state(owner, "r"), owner.records.replicas_of_orphans) == (RequestState.RUNNING, set())
    owner.replica_up(facts(), [running(attempt=3)])
    assert (owner.snapshot().adopted, state(owner, "r")) == (2, RequestState.RUNNING), (
        "what is held is not a replica's to take away"
    )


@pytest.mark.parametrize(("sequences", "ending"), [(1, "finished"), (0, "failed")])
async def test_an_orphan_ends_with_its_engines_account(owner: LaneOwner, sequences: int, ending: str) -> None:
    owner.replica_up(facts(), [running()])
    owner.finished(account("q-1", sequences))
    assert (state(owner), owner.snapshot().endings[ending]) == (RequestState.CLOSED, 1)
