"""The snapshot shows each book under its own name."""

import pytest

from deployments.lane_stats import LaneStats
from deployments.scheduling import (
    Capacity,
    Ending,
    LanePolicy,
    Scheduler,
    SchedulingPolicy,
    TenantPolicy,
    Usage,
    WaitReason,
)
from deployments.scheduling.snapshot import FlowStats, ReplicaStats
from deployments.scheduling.tally import _replica
from tests.deployments.scheduling.world import make_request, make_scheduler

POLICY = SchedulingPolicy(
    lanes=(LanePolicy("short", 200, max_wait_s=50), LanePolicy("long", None, max_wait_s=50)),
    decode_weight=2.0,
    tenants={"b": TenantPolicy(max_concurrency=1)},
)
ONE = Capacity(sequences=1, ahead=0, kv_tokens=4_000, step_tokens=300, prefill_steps=2.0)


def busy() -> Scheduler:
    """One short request runs on the only replica, two wait since 1.0 and 2.0, one of tenant b was turned away; one
    finished before."""
    scheduler = make_scheduler(1, POLICY, ONE)
    scheduler.submit(make_request("first", 100, 40, 0.0), 0.0)
    (first,) = scheduler.step(0.0).placements
    scheduler.first_token(first.lease, 0.5)
    scheduler.release(first.lease, Ending.FINISHED, Usage(100, 0, 20, 0, 1, 0.01, 1.9), 0.8)
    scheduler.submit(make_request("runs", 60, 40, 0.9), 0.9)
    scheduler.step(0.9)
    scheduler.submit(make_request("waits", 60, 40, 1.0, sequences=2), 1.0)
    scheduler.step(1.0)
    scheduler.submit(make_request("waits-too", 70, 40, 2.0, tenant="b"), 2.0)
    scheduler.submit(make_request("too-many", 300, 40, 2.5, tenant="b"), 2.5)
    scheduler.step(2.5)
    return scheduler


def test_a_replica() -> None:
    replica = make_scheduler(0).fleet.up("r7", Capacity(8, 2, 9_000, 512, prefill_steps=2.0))
    replica.sequences, replica.kv_tokens, replica.prefill_tokens, replica.tpot_s, replica.held_by = (
        3,
        700,
        90,
        0.05,
        "long",
    )
    replica.prefill_tokens_per_s = 4_000.0
    assert _replica(replica) == ReplicaStats("r7", "ready", 0, 3, 700, 90, 4_000.0, "long", 8, 9_000, 0.05)


def test_lanes_say_what_waits_since_when_for_what_and_how_long() -> None:
    scheduler = busy()
    snapshot = scheduler.snapshot(3.0)
    short, long, promoted = snapshot.lanes
    rate = scheduler.rate.per_s
    assert rate is not None
    assert snapshot.tokens_per_s == rate
    eta = scheduler.forecasts.etas["short"]
    cost = sum(job.cost for job in scheduler.lanes.jobs.values())
    drain_s, eta_s = pytest.approx(cost / rate), scheduler.forecasts.shown(scheduler.lanes.lanes[0], 3.0)
    assert short == LaneStats("short", 2, cost, drain_s, 2.0, WaitReason.SEQUENCES, eta_s, 0, 0, 0)
    assert short.eta_s is not None
    assert eta.open == 2
    assert long == LaneStats("long", 0, 0.0, 0.0, 0.0, None, None, 0, 0, 0)
    assert promoted == LaneStats("promoted", 0, 0.0, 0.0, 0.0, None, None, 0, 0, 0)
    assert scheduler.snapshot(3.0, etas=False).lanes[0].eta_s is None


def test_a_lane_whose_head_was_not_looked_at_waits_for_any_replica() -> None:
    scheduler = make_scheduler(0, POLICY)
    scheduler.submit(make_request("q"), 0.0)
    lane = scheduler.snapshot(0.0).lanes[0]
    assert (lane.head_waits_for, lane.work_s) == (WaitReason.NO_READY_REPLICA, None)


def test_promises_are_counted_for_the_lane_that_gave_them() -> None:
    scheduler = busy()
    eta = scheduler.forecasts.etas["short"]
    eta.p95.within, eta.p95.total, eta.p95.censored = 5, 7, 2
    eta.p50.within, eta.p50.total, eta.p50.censored = 50, 70, 20
    short = scheduler.snapshot(3.0).lanes[0]
    assert (short.covered, short.estimated, short.censored) == (5, 7, 2)


def test_counters() -> None:
    snapshot = busy().snapshot(3.0)
    assert (snapshot.submitted, snapshot.placed, snapshot.adopted, snapshot.promoted) == (5, 2, 0, 0)
    assert snapshot.endings == {"finished": 1, "cancelled": 0, "failed": 0, "refused": 0}
    assert snapshot.rejections == {("long", "tenant_concurrency"): 1}
    assert (snapshot.finished, snapshot.finished_work, snapshot.output_tokens, snapshot.counted) == (
        1,
        100 + 2.0 * 40,
        20,
        1,
    )
    assert (snapshot.output_error, snapshot.other_lane, snapshot.prefix_trust) == (1.0, 0.0, 1.0)
    learned = 23  # of prompts as long as the first one's: the bound of the bin that holds its 20 tokens
    assert snapshot.flows == (
        FlowStats(
            "short", "interactive", 4, 180.0 + 140.0 + 280.0 + 70.0 + 2.0 * learned, 100 + 60 + 120 + 70, 1, 0, 5.0
        ),
        FlowStats("long", "interactive", 1, 300.0 + 2.0 * 40, 300, 0, 0, 5.0),
    )


def test_what_was_promoted_adopted_and_settled_elsewhere_is_counted() -> None:
    scheduler = busy()
    scheduler.step(60.0)
    (lease, _), *_ = scheduler.leases.values()
    scheduler.release(lease, Ending.FINISHED, Usage(60, 0, 500, 0, 1, 0.01, 1.9), 60.0)
    (placement,) = scheduler.step(60.0).placements
    assert placement.promoted
    scheduler.replica_up("r1", ONE, 61.0)
    reported = placement.lease.__class__(0, make_request("reported"), "r1", 1.0, 1, 60, 100, 40, 0)
    assert scheduler.adopt(reported, True, 61.0) is not None
    snapshot = scheduler.snapshot(61.0)
    assert (snapshot.placed, snapshot.adopted, snapshot.promoted) == (3, 1, 1)
    assert snapshot.other_lane == 0.5, "one of two gave so much that it belonged to the long lane"
    assert [lane.waiting for lane in snapshot.lanes] == [0, 0, 1]
    assert snapshot.lanes[2].eta_s is None
    assert [(replica.replica_id, replica.leases) for replica in snapshot.replicas] == [("r0", 1), ("r1", 1)]
