"""A replica that is kept free for a promoted job: for whom, on which one, and until when."""

from deployments.scheduling import Capacity, Ending, LanePolicy, PickReason, Scheduler, SchedulingPolicy, WaitReason
from tests.deployments.scheduling.world import make_request, make_scheduler

POLICY = SchedulingPolicy(
    lanes=(LanePolicy("short", 500, max_wait_s=1e6), LanePolicy("long", None, max_wait_s=1)), max_waiting=1_000
)
CAPACITY = Capacity(sequences=4, ahead=0, kv_tokens=4_000, step_tokens=10**6, prefill_steps=2.0)


def held(replicas: int = 1) -> Scheduler:
    """Each replica runs a short request; a long one, which needs a replica of its own, has just been promoted."""
    scheduler = make_scheduler(replicas, POLICY, CAPACITY)
    for number in range(replicas):
        scheduler.submit(make_request(f"s{number}", 100, 100 * (number + 1), patience=1e6), 0.0)
        assert len(scheduler.step(0.0).placements) == 1
    scheduler.submit(make_request("long", 3_900, 50, patience=1e6), 0.0)
    assert not scheduler.step(1.0).placements
    return scheduler


def submitters(scheduler: Scheduler, now: float) -> list[str | None]:
    return [replica.held_by for replica in scheduler.snapshot(now).replicas]


def test_what_is_held_for_a_promoted_job_goes_to_it_alone() -> None:
    scheduler = held()
    assert submitters(scheduler, 1.0) == ["promoted"]
    scheduler.submit(make_request("late", 10, 10, 1.0), 1.0)
    assert not scheduler.step(1.0).placements
    assert scheduler.snapshot(1.0).lanes[0].head_waits_for is WaitReason.RESERVED
    assert dict(scheduler.head_waits())["promoted"] is WaitReason.KV_TOKENS, "on the one that is held for it"
    (lease, _), *_ = scheduler.leases.values()
    scheduler.release(lease, Ending.FINISHED, None, 2.0)
    first, *_ = scheduler.step(2.0).placements
    assert (first.request.request_id, first.reason, submitters(scheduler, 2.0)) == ("long", PickReason.HELD, [None])


def test_of_several_the_one_on_which_it_fits_soonest() -> None:
    assert submitters(held(3), 1.0) == ["promoted", None, None], "which runs the smallest request"


def test_a_hold_ends_with_its_job() -> None:
    scheduler = held()
    scheduler.cancel("long", 1.5)
    scheduler.step(1.5)
    assert (submitters(scheduler, 1.5), scheduler.fleet.reserved, scheduler.holds.by_lane) == ([None], 0, {})
    scheduler.submit(make_request("late", 10, 10, 2.0), 2.0)
    assert len(scheduler.step(2.0).placements) == 1


def test_a_hold_ends_with_its_replica_and_another_is_found() -> None:
    scheduler = held(2)
    scheduler.replica_draining("r0", 1.5)
    scheduler.step(1.5)
    assert submitters(scheduler, 1.5) == [None, "promoted"]
    scheduler.replica_lost("r1", 2.0)
    scheduler.step(2.0)
    assert (submitters(scheduler, 2.0), scheduler.fleet.reserved) == ([None], 0)
