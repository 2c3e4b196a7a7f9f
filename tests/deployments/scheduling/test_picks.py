"""Which replica, and why: small cases that a reader can follow."""

import dataclasses

from deployments.scheduling import Capacity, Ending, PickReason, Scheduler, Usage
from deployments.scheduling.replica import ReplicaStatus
from tests.deployments.scheduling.world import POLICY, make_request, make_scheduler

ROOMY = Capacity(sequences=32, ahead=2, kv_tokens=100_000, step_tokens=500, prefill_steps=2.0)


def place(scheduler: Scheduler, name: str, now: float = 0.0, **sizes: object) -> tuple[str, PickReason]:
    """Submits one request that must be placed at once."""
    scheduler.submit(make_request(name, now=now, **sizes), now)  # type: ignore[arg-type]
    (placement,) = scheduler.step(now).placements
    return placement.replica_id, placement.reason


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
