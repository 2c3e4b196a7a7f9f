"""Which replica, and why: small cases that a reader can follow."""

import dataclasses

from deployments.scheduling import (
    AdmissionKind,
    Capacity,
    Ending,
    LanePolicy,
    PickReason,
    RejectCause,
    Scheduler,
    SchedulingPolicy,
    Usage,
    WaitReason,
)
from deployments.scheduling.replica import ReplicaStatus
from tests.deployments.scheduling.world import CAPACITY, POLICY, make_request, make_scheduler

ROOMY = Capacity(sequences=32, ahead=2, kv_tokens=100_000, step_tokens=500, prefill_steps=2.0)


def place(scheduler: Scheduler, name: str, now: float = 0.0, **sizes: object) -> tuple[str, PickReason]:
    """Submits one request that must be placed at once."""
    scheduler.submit(make_request(name, now=now, **sizes), now)  # type: ignore[arg-type]
    (placement,) = scheduler.step(now).placements
    return placement.replica_id, placement.reason


def test_the_least_loaded_replica_is_picked() -> None:
    scheduler = make_scheduler(2, capacity=ROOMY)
    assert place(scheduler, "a") == ("r0", PickReason.LEAST_DECODE)
    assert place(scheduler, "b") == ("r1", PickReason.LEAST_PREFILL)


def test_a_cached_prefix_is_used_until_it_costs_more_than_the_stickiness() -> None:
    scheduler = make_scheduler(
        2, dataclasses.replace(POLICY, stickiness_ms=20.0), dataclasses.replace(ROOMY, prefill_steps=2.0)
    )
    prefix = tuple(range(5))
    assert place(scheduler, "a", prompt=400, prefix=prefix)[0] == "r0"
    lease = next(iter(scheduler.fleet.by_id["r0"].leases.values()))
    scheduler.first_token(lease, 0.0)
    assert place(scheduler, "b", prompt=400, prefix=prefix) == ("r0", PickReason.CACHED_PREFIX)
    for number in range(2):  # 10,000 tokens/s until measured: 400 tokens are 40 ms
        scheduler.submit(make_request(f"load{number}", prompt=400, prefix=prefix), 0.0)
        scheduler.step(0.0)
    reasons = [place(scheduler, f"c{number}", prompt=400, prefix=prefix)[1] for number in range(6)]
    assert PickReason.STICKINESS_BROKEN in reasons


def test_a_long_prefill_stays_off_the_replica_that_decodes() -> None:
    scheduler = make_scheduler(2, capacity=ROOMY)
    for number in range(4):
        scheduler.submit(make_request(f"q{number}", prompt=10), 0.0)
    placements = scheduler.step(0.0).placements
    for placement in placements:
        scheduler.first_token(placement.lease, 0.0)
    for placement in placements:
        if placement.replica_id == "r1":
            scheduler.release(placement.lease, Ending.FINISHED, None, 0.0)
    scheduler.submit(make_request("short", prompt=10), 0.0)
    (short,) = scheduler.step(0.0).placements
    assert short.replica_id == "r1"
    replica, reason = place(scheduler, "long", prompt=4_000)
    assert (replica, reason) == ("r1", PickReason.APART_FROM_SHORT)


def test_what_the_head_waits_for_is_told() -> None:
    scheduler = make_scheduler(0)
    scheduler.submit(make_request("a"), 0.0)
    scheduler.step(0.0)
    assert scheduler.snapshot(0.0).lanes[0].head_waits_for is WaitReason.NO_READY_REPLICA
    scheduler.replica_up("r0", CAPACITY, 0.0)
    assert len(scheduler.step(0.0).placements) == 1
    scheduler.submit(make_request("big", prompt=3_950), 0.0)
    scheduler.step(0.0)
    assert scheduler.snapshot(0.0).lanes[2].head_waits_for is WaitReason.KV_TOKENS


def test_a_promoted_request_that_fits_nowhere_holds_a_replica_until_it_does() -> None:
    policy = SchedulingPolicy(
        lanes=(LanePolicy("short", 500, weight=100, max_wait_s=1), LanePolicy("long", None, weight=1, max_wait_s=1)),
        max_waiting=1_000,
    )
    scheduler = make_scheduler(1, policy)
    running = []
    for number in range(5):
        scheduler.submit(make_request(f"s{number}", prompt=200, output=200), 0.0)
        running += scheduler.step(0.0).placements
        scheduler.first_token(running[-1].lease, 0.0)
    scheduler.submit(make_request("long", prompt=3_800, output=50), 0.0)
    for number in range(20):
        scheduler.submit(make_request(f"t{number}", prompt=200, output=200, now=0.9), 0.9)
    scheduler.step(1.0)
    others: list[str] = []
    for placement in running:
        scheduler.release(placement.lease, Ending.FINISHED, None, 1.1)
        others += [p.request.request_id for p in scheduler.step(1.1).placements]
        assert "long" in others or scheduler.snapshot(1.1).replicas[0].held_by == "promoted"
    assert others == ["long"]


def test_a_slow_replica_is_ejected_forgiven_and_never_the_last() -> None:
    scheduler = make_scheduler(3, capacity=ROOMY)

    def finish(replica_id: str, decode_s: float, now: float) -> None:
        scheduler.submit(make_request(f"{replica_id}-{now}", now=now), now)
        (placement,) = scheduler.step(now).placements
        usage = Usage(100, 0, 50, 0, 1, 0.01, decode_s)
        scheduler.fleet.by_id[replica_id].learn(usage)
        scheduler.release(placement.lease, Ending.FINISHED, None, now)

    for number in range(20):
        for replica_id, decode_s in (("r0", 1.0), ("r1", 1.1), ("r2", 9.0)):
            finish(replica_id, decode_s, float(number))
    assert [replica.status for replica in scheduler.snapshot(20.0).replicas] == ["ready", "ready", "ejected"]
    scheduler.replica_lost("r0", 20.0)
    scheduler.step(60.0)
    assert all(replica.status is ReplicaStatus.READY for replica in scheduler.fleet.by_id.values())


def test_a_full_lane_rejects_with_a_time_that_grows_with_its_work() -> None:
    policy = SchedulingPolicy(lanes=(LanePolicy("all", None, cap_s=10.0, max_wait_s=1e6),), decode_weight=1.0)
    scheduler = make_scheduler(1, policy)
    now = 0.0
    for number in range(400):  # 150 tokens of work a request, five requests a second
        scheduler.submit(make_request(f"q{number}", prompt=100, output=50, now=now), now)
        for placement in scheduler.step(now).placements:
            scheduler.first_token(placement.lease, now)
        now += 0.1
        if number % 2 and (leases := list(scheduler.fleet.by_id["r0"].leases.values())):
            scheduler.release(leases[0], Ending.FINISHED, None, now)
            for placement in scheduler.step(now).placements:
                scheduler.first_token(placement.lease, now)
    rejected = [scheduler.submit(make_request(f"z{number}", now=now), now) for number in range(20)]
    full = [admission for admission in rejected if admission.kind is AdmissionKind.REJECT]
    assert full
    assert {admission.cause for admission in full} == {RejectCause.LANE_FULL}
    backlog = scheduler.snapshot(now).lanes[0].work_s
    assert backlog is not None
    assert 8 <= backlog <= 10.5
    waits = [admission.retry_after_s or 0 for admission in full]
    assert waits[-1] > waits[0] >= 1
