"""A cordon keeps new work off a replica and leaves everything else as it is."""

from deployments.scheduling import Ending
from deployments.scheduling.fleet import CHECK_S, PROBATION_S
from deployments.scheduling.reasons import WaitReason
from tests.deployments.scheduling.world import CAPACITY, make_request, make_scheduler


def statuses(scheduler: object, now: float = 0.0) -> dict[str, str]:
    return {replica.replica_id: replica.status for replica in scheduler.snapshot(now).replicas}  # type: ignore[attr-defined]


def test_a_cordoned_replica_gets_nothing_new_and_keeps_what_it_has() -> None:
    scheduler = make_scheduler(replicas=2)
    for number in range(2):
        scheduler.submit(make_request(f"q{number}"), 0.0)
    before = scheduler.step(0.0).placements
    assert {placement.replica_id for placement in before} == {"r0", "r1"}
    scheduler.replica_cordoned("r0", 1.0)
    for number in range(2, 8):
        scheduler.submit(make_request(f"q{number}", now=1.0), 1.0)
    placed = scheduler.step(1.0).placements
    assert {placement.replica_id for placement in placed} == {"r1"}
    assert statuses(scheduler) == {"r0": "cordoned", "r1": "ready"}
    assert scheduler.snapshot(1.0).replicas[0].leases == 1
    (lease,) = [placement.lease for placement in before if placement.replica_id == "r0"]
    assert scheduler.release(lease, Ending.FINISHED, None, 2.0)
    assert all(placement.replica_id == "r1" for placement in scheduler.step(2.0).placements)
    scheduler.replica_uncordoned("r0", 3.0)
    assert {placement.replica_id for placement in scheduler.step(3.0).placements} == {"r0"}


def test_its_feed_does_not_lift_a_cordon() -> None:
    scheduler = make_scheduler(replicas=1)
    scheduler.replica_cordoned("r0", 0.0)
    scheduler.replica_up("r0", CAPACITY, 1.0)
    assert statuses(scheduler) == {"r0": "cordoned"}
    scheduler.replica_unresponsive("r0", 2.0)
    assert statuses(scheduler) == {"r0": "unresponsive"}
    scheduler.replica_up("r0", CAPACITY, 3.0)
    assert statuses(scheduler) == {"r0": "cordoned"}
    scheduler.submit(make_request("q", now=3.0), 3.0)
    assert not scheduler.step(3.0).placements
    assert scheduler.snapshot(3.0).lanes[0].head_waits_for is WaitReason.NO_READY_REPLICA


def test_a_cordon_outlives_the_loss_and_precedes_the_replica() -> None:
    scheduler = make_scheduler(replicas=0)
    scheduler.replica_cordoned("r0", 0.0)
    scheduler.replica_up("r0", CAPACITY, 1.0)
    assert statuses(scheduler) == {"r0": "cordoned"}
    scheduler.replica_lost("r0", 2.0)
    scheduler.replica_up("r0", CAPACITY, 3.0)
    assert statuses(scheduler) == {"r0": "cordoned"}
    scheduler.replica_uncordoned("r0", 4.0)
    assert statuses(scheduler) == {"r0": "ready"}


def test_a_drain_is_not_lifted_with_the_cordon() -> None:
    scheduler = make_scheduler(replicas=1)
    scheduler.replica_cordoned("r0", 0.0)
    scheduler.replica_draining("r0", 1.0)
    assert statuses(scheduler) == {"r0": "draining"}
    scheduler.replica_uncordoned("r0", 2.0)
    assert statuses(scheduler) == {"r0": "draining"}


def test_one_that_was_ejected_is_forgiven_behind_its_cordon() -> None:
    scheduler = make_scheduler(replicas=3)
    for number, replica in enumerate(scheduler.fleet.by_id.values()):
        replica.tpot_s = 1.0 if number == 0 else 0.01
    now = CHECK_S
    scheduler.step(now)
    assert statuses(scheduler)["r0"] == "ejected"
    scheduler.replica_cordoned("r0", now)
    assert statuses(scheduler)["r0"] == "cordoned"
    now += PROBATION_S + CHECK_S
    scheduler.step(now)
    scheduler.replica_uncordoned("r0", now)
    assert statuses(scheduler)["r0"] == "ready"


def test_a_cordon_ends_a_hold() -> None:
    scheduler = make_scheduler(replicas=1)
    scheduler.submit(make_request("first", prompt=3_000), 0.0)
    (first,) = scheduler.step(0.0).placements
    scheduler.first_token(first.lease, 1.0)
    scheduler.submit(make_request("large", prompt=3_500), 1.0)
    scheduler.step(41.0)
    assert scheduler.snapshot(41.0).replicas[0].held_by == "promoted"
    scheduler.replica_cordoned("r0", 42.0)
    scheduler.step(42.0)
    assert scheduler.snapshot(42.0).replicas[0].held_by is None
