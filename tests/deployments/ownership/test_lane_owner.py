"""The live shell of the scheduler, event by event: who is told what, which lease stands, what a replica's word
changes."""

import asyncio
import time
from dataclasses import replace
from pathlib import Path

import pytest

from deployments.decision_log import DecisionLog, log_files, read_log
from deployments.decisions import Input
from deployments.ownership.lane_owner import LaneOwner
from deployments.ownership.record import RequestState
from deployments.protocol import ReplicaState
from deployments.scheduling import Binding, Capacity, Ending, LanePolicy, RejectCause, SchedulingPolicy
from deployments.scheduling.replica import ReplicaStatus
from deployments.telemetry.line_log import LogHealth
from tests.deployments.gateway.rig import until
from tests.deployments.ownership.lane_owner_rig import Submitter, account, facts, request, running, state


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
    assert owner.records.live == 0


async def test_what_would_wait_in_vain_is_turned_away(owner: LaneOwner, submitter: Submitter) -> None:
    owner.replica_state("r1", ReplicaState.DRAINING)
    owner.submit(submitter, request())
    owner.expect_replica(time.monotonic() + 300.0)
    assert [admission.cause for admission in submitter.admissions] == [None, RejectCause.STARTING]
    assert state(owner) is None


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


async def test_cordons_are_set_and_lifted(owner: LaneOwner, submitter: Submitter) -> None:
    owner.cordon(frozenset({"r1", "unknown"}))
    owner.submit(submitter, request())
    assert (submitter.placements, owner.scheduler.fleet.cordoned) == ([], {"r1", "unknown"})
    owner.cordon(frozenset({"unknown"}))
    assert (submitter.attempt_ids, owner.scheduler.fleet.cordoned) == (["q-1"], {"unknown"})


async def test_new_settings_reach_lanes_and_replicas(owner: LaneOwner, submitter: Submitter) -> None:
    owner.replicas.up(facts("unclaimed"))
    owner.configure(SchedulingPolicy(lanes=(LanePolicy("only"),)), Binding(1.0, 5))
    assert owner.scheduler.fleet.by_id["r1"].capacity == Capacity(8, 8, 65_536, 2_048, 5, context_tokens=1_024)
    assert set(owner.scheduler.fleet.by_id) == {"r1"}, "a replica that has not seen the epoch is not used"
    assert [lane.name for lane in owner.snapshot().lanes] == ["only", "promoted"]
    owner.replica_up(facts("r2", 4))
    assert owner.scheduler.fleet.by_id["r2"].capacity == Capacity(4, 4, 65_536, 2_048, 5, context_tokens=1_024)


async def test_a_closed_owner_decides_nothing_more(owner: LaneOwner, submitter: Submitter) -> None:
    assert owner.join(submitter, "g", 1)
    owner.replica_state("r1", None)
    waiting = Submitter()
    owner.submit(waiting, request(wait_s=0.3))  # longer than a busy machine takes to the next line
    owner.close()
    owner.replica_up(facts())
    await asyncio.sleep(0.4)
    assert (submitter.moves, waiting.placements, waiting.expiries) == (1, [], [])


async def test_every_input_is_written_with_its_time(tmp_path: Path) -> None:
    health = LogHealth("demo")
    log = DecisionLog(tmp_path, "demo", health, at_once=True)
    owner = LaneOwner(SchedulingPolicy(), decision_log=log)
    owner.replicas.up(facts())
    owner.replica_up(facts())
    owner.cordon(frozenset({"r1"}))
    owner.cordon(frozenset())
    owner.expect_replica(None)
    owner.replica_state("r1", None)
    owner.replica_state("r1", ReplicaState.DRAINING)
    owner.replica_state("r1", None)  # it goes on draining
    owner.replica_lost("r1")
    owner.configure(SchedulingPolicy(max_waiting=7), Binding())
    owner.close()
    inputs = [one for one in read_log(log_files(tmp_path, "demo")) if isinstance(one, Input)]
    methods = [one.method for one in inputs if one.method != "step"]
    changes = [
        "replica_cordoned",
        "replica_uncordoned",
        "expect_replica",
        "replica_unresponsive",
        "replica_draining",
        "replica_lost",
        "configure",
    ]
    assert methods == ["replica_up", *changes]
    assert [one.at_s for one in inputs] == sorted(one.at_s for one in inputs)
    assert (health.lost_lines, health.error) == (0, None)


async def test_a_gateway_that_is_gone_leaves_what_runs_and_nothing_that_waits(
    owner: LaneOwner, submitter: Submitter
) -> None:
    for name in ("runs", "whole", "cut"):
        owner.submit(submitter, request(name))
    owner.finished(account("whole-1"))
    owner.finished(account("cut-1", 0))
    owner.replica_state("r1", None)
    owner.submit(submitter, request("waits"))
    owner.left(submitter)
    assert [state(owner, name) for name in ("runs", "whole", "cut", "waits")] == [
        RequestState.ORPHANED,
        RequestState.CLOSED,
        RequestState.CLOSED,
        None,
    ]
    endings = owner.snapshot().endings
    assert (endings["finished"], endings["failed"], owner.scheduler.lanes.jobs) == (1, 1, {})


async def test_a_request_that_comes_again_without_a_lease_gets_the_next_attempt(
    owner: LaneOwner, submitter: Submitter
) -> None:
    """Its channel broke: what this owner issued meanwhile, its gateway has not heard of."""
    owner.hold(submitter, "declared-1")
    owner.submit(submitter, request("declared", attempts=1), admitted=True)
    owner.replica_state("r1", None)
    owner.submit(submitter, request("waits"))
    owner.submit(submitter, request("waits", attempts=3), admitted=True)
    owner.replica_up(facts())
    assert submitter.attempt_ids == ["declared-2", "waits-4"]


async def test_a_gateway_that_asks_again_is_told_again(owner: LaneOwner, submitter: Submitter) -> None:
    owner.replica_state("r1", None)
    for _ in range(2):
        owner.submit(submitter, request())
    first, second = submitter.admissions
    assert first is second
    assert owner.snapshot().submitted == 1


async def test_a_rejected_request_leaves_nothing(owner: LaneOwner, submitter: Submitter) -> None:
    owner.replica_state("r1", None)
    for number in range(4):
        owner.submit(submitter, request(f"q{number}"))
    assert [admission.accepted for admission in submitter.admissions] == [True, True, True, False]
    assert (state(owner, "q3"), owner.records.live) == (None, 3)


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


async def test_a_lease_of_an_owner_before_that_is_refused_waits_as_its_gateway_describes_it(
    owner: LaneOwner, submitter: Submitter
) -> None:
    owner.replica_up(facts(), [running(attempt=2)])
    owner.hold(submitter, "q-2")
    owner.refused(submitter, replace(running(attempt=2).lease, request=request()), None)
    assert (submitter.attempt_ids, owner.snapshot().endings["failed"]) == ([], 1)
    owner.replica_up(facts())
    assert submitter.attempt_ids == ["q-3"]


@pytest.mark.parametrize(("sequences", "ending"), [(1, "finished"), (0, "failed")])
async def test_an_orphan_ends_with_its_engines_account(owner: LaneOwner, sequences: int, ending: str) -> None:
    owner.replica_up(facts(), [running()])
    owner.finished(account("q-1", sequences))
    assert (state(owner), owner.snapshot().endings[ending]) == (RequestState.CLOSED, 1)
