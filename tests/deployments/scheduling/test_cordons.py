"""A cordon keeps new work off a replica and leaves everything else as it is."""

from deployments.scheduling import Ending
from tests.deployments.scheduling.world import CAPACITY, make_scheduler, submit_all


def statuses(scheduler: object, now: float = 0.0) -> dict[str, str]:
    return {replica.replica_id: replica.status for replica in scheduler.snapshot(now).replicas}  # type: ignore[attr-defined]


def test_a_cordoned_replica_gets_nothing_new_and_keeps_what_it_has() -> None:
    scheduler = make_scheduler(replicas=2)
    submit_all(scheduler, 2, "q")
    before = scheduler.step(0.0).placements
    assert {placement.replica_id for placement in before} == {"r0", "r1"}
    scheduler.replica_cordoned("r0", 1.0)
    submit_all(scheduler, 6, "later", now=1.0)
    placed = scheduler.step(1.0).placements
    assert {placement.replica_id for placement in placed} == {"r1"}
    assert statuses(scheduler) == {"r0": "cordoned", "r1": "ready"}
    assert scheduler.snapshot(1.0).replicas[0].leases == 1
    (lease,) = [placement.lease for placement in before if placement.replica_id == "r0"]
    assert scheduler.release(lease, Ending.FINISHED, None, 2.0)
    assert all(placement.replica_id == "r1" for placement in scheduler.step(2.0).placements)
    scheduler.replica_uncordoned("r0", 3.0)
    assert {placement.replica_id for placement in scheduler.step(3.0).placements} == {"r0"}


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
