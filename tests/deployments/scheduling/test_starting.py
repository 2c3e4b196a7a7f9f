"""The waiting room: without a replica a request waits as long as the next start fits its patience, and is else told
when to come back."""

from dataclasses import replace

import pytest

from deployments.scheduling import AdmissionKind, Ending, RejectCause, Scheduler
from tests.deployments.scheduling.world import CAPACITY, LANES, POLICY, make_request, make_scheduler, submit_all

CAPPED = replace(POLICY, lanes=tuple(replace(lane, cap_s=10.0) for lane in LANES))


def test_everybody_waits_while_nobody_knows() -> None:
    scheduler = make_scheduler(replicas=0)
    assert scheduler.submit(make_request("q", patience=10), 0.0).kind is AdmissionKind.QUEUE
    scheduler.step(0.0)
    scheduler.replica_up("r0", CAPACITY, 5.0)
    assert len(scheduler.step(5.0).placements) == 1


@pytest.mark.parametrize(("patience_s", "accepted"), [(30.0, False), (59.9, False), (60.0, True), (120.0, True)])
def test_a_start_must_fit_the_patience(patience_s: float, accepted: bool) -> None:
    scheduler = make_scheduler(replicas=0)
    scheduler.expect_replica(60.0, 0.0)
    admission = scheduler.submit(make_request("q", patience=patience_s), 0.0)
    assert admission.accepted is accepted
    if accepted:
        assert admission.eta_s is not None
        assert admission.eta_s[0] >= 60.0
    else:
        assert admission.cause is RejectCause.STARTING
        assert admission.retry_after_s is not None
        assert 60.0 <= admission.retry_after_s <= 67.0
        assert scheduler.snapshot(0.0).rejections == {("short", "starting"): 1}
        assert scheduler.snapshot(0.0).flows[0].missed == 1


def test_what_waits_is_told_as_soon_as_it_is_known() -> None:
    scheduler = make_scheduler(replicas=0)
    for name, patience_s in (("patient", 100.0), ("hasty", 20.0)):
        assert scheduler.submit(make_request(name, patience=patience_s), 0.0).accepted
    scheduler.expect_replica(50.0, 1.0)
    (gone,) = scheduler.step(1.0).turned_away
    assert (gone.request.request_id, gone.admission.cause) == ("hasty", RejectCause.STARTING)
    assert gone.admission.retry_after_s is not None
    assert gone.admission.retry_after_s >= 49.0
    assert list(scheduler.lanes.jobs) == ["patient"]
    assert not scheduler.step(2.0).turned_away
    scheduler.expect_replica(200.0, 3.0)
    assert [one.request.request_id for one in scheduler.step(3.0).turned_away] == ["patient"]
    assert scheduler.snapshot(3.0).flows[0].missed == 2


def test_a_late_start_keeps_everybody_waiting() -> None:
    """Its time has passed and it is not there: nobody knows any more."""
    scheduler = make_scheduler(replicas=0)
    scheduler.expect_replica(60.0, 0.0)
    assert scheduler.submit(make_request("q", now=61.0, patience=5), 61.0).accepted


def refused(scheduler: Scheduler, now: float = 1.0) -> bool:
    """Whether a request of little patience is turned away, with a start in the far future."""
    scheduler.expect_replica(now + 300.0, now)
    return scheduler.submit(make_request(f"probe-{now}", now=now, patience=10), now).cause is RejectCause.STARTING


def test_only_a_deserted_model_turns_away() -> None:
    scheduler = make_scheduler(replicas=1)
    assert not refused(scheduler)
    scheduler.replica_unresponsive("r0", 2.0)
    assert not refused(scheduler, 2.0), "an unresponsive replica may speak again"
    scheduler.replica_draining("r0", 3.0)
    assert refused(scheduler, 3.0)
    scheduler.replica_up("r1", CAPACITY, 4.0)
    assert not refused(scheduler, 4.0)
    scheduler.replica_cordoned("r1", 5.0)
    assert refused(scheduler, 5.0)
    scheduler.replica_uncordoned("r1", 6.0)
    assert not refused(scheduler, 6.0)
    scheduler.replica_lost("r1", 7.0)
    assert refused(scheduler, 7.0)
    scheduler.expect_replica(None, 8.0)
    assert scheduler.submit(make_request("q", now=8.0, patience=10), 8.0).accepted


def test_the_last_replica_goes_while_requests_wait() -> None:
    scheduler = make_scheduler(replicas=1)
    scheduler.expect_replica(300.0, 0.0)
    submit_all(scheduler, 8, "q", patience=60)
    placed = scheduler.step(0.0).placements
    assert 0 < len(placed) < 8
    scheduler.replica_draining("r0", 1.0)
    assert len(scheduler.step(1.0).turned_away) == 8 - len(placed)
    scheduler.release(placed[0].lease, Ending.REFUSED, None, 2.0)
    assert len(scheduler.step(2.0).turned_away) == 1, "and one that the replica refused at the last moment"


def test_the_rejected_come_back_spread_out_behind_the_start() -> None:
    scheduler = make_scheduler(replicas=1, policy=CAPPED)
    for number in range(30):  # a model with a past knows its rate
        now = float(number)
        scheduler.submit(make_request(f"past{number}", now=now), now)
        for placement in scheduler.step(now).placements:
            scheduler.release(placement.lease, Ending.FINISHED, None, now + 0.5)
    assert scheduler.rate.per_s is not None
    scheduler.replica_lost("r0", 300.0)
    scheduler.expect_replica(400.0, 300.0)
    reported = [
        scheduler.submit(make_request(f"q{number}", now=300.0, patience=10), 300.0).retry_after_s or 0.0
        for number in range(300)
    ]
    assert min(reported) >= 100.0
    assert max(reported) > 130.0
    assert max(reported) <= 600.0


def served(scheduler: Scheduler, name: str, begin: float, end: float) -> None:
    """One request alone: placed when a replica is there, and finished."""
    assert scheduler.submit(make_request(name, now=begin), begin).accepted
    (placement,) = scheduler.step(begin).placements
    scheduler.first_token(placement.lease, end)
    assert scheduler.release(placement.lease, Ending.FINISHED, None, end)
    scheduler.step(end)


def test_the_time_of_a_start_is_no_slowness() -> None:
    """A cold start with one light request leaves nothing that turns the next crowd away."""
    scheduler = make_scheduler(replicas=1, policy=CAPPED)
    served(scheduler, "light", 0.0, 2.0)
    scheduler.replica_lost("r0", 3.0)
    assert scheduler.submit(make_request("first", now=10.0), 10.0).accepted
    scheduler.step(10.0)
    before = scheduler.rate.placed.per_s
    crowd = [
        scheduler.submit(make_request(f"crowd-{number}", now=11.0, prompt=900, output=400), 11.0)
        for number in range(30)
    ]
    assert {one.kind for one in crowd} == {AdmissionKind.QUEUE}
    scheduler.step(25.0)
    assert scheduler.rate.placed.per_s == before
    scheduler.replica_up("r1", CAPACITY, 26.0)
    assert scheduler.step(26.0).placements
    assert scheduler.submit(make_request("late", now=26.1, prompt=900, output=400), 26.1).accepted


def test_what_was_seen_under_load_still_bounds_a_waiting_room() -> None:
    scheduler = make_scheduler(replicas=1, policy=CAPPED)
    submit_all(scheduler, 30, "load-")
    for second in range(1, 20):
        for lease, _ in list(scheduler.leases.values())[:4]:
            scheduler.release(lease, Ending.FINISHED, None, float(second))
        scheduler.step(float(second))
    assert scheduler.rate.placed.per_s is not None
    scheduler.replica_lost("r0", 20.0)
    reported = [scheduler.submit(make_request(f"more-{number}", now=21.0, prompt=1_900), 21.0) for number in range(30)]
    assert any(one.cause is RejectCause.LANE_FULL for one in reported)
