"""An impatient request has another model: it is rejected where it would wait for longer than it may."""

from dataclasses import replace

from deployments.scheduling import AdmissionKind, Ending, RejectCause, Request, Scheduler
from tests.deployments.scheduling.world import CAPACITY, make_request, make_scheduler


def impatient(name: str, now: float = 0.0, patience: float = 10.0) -> Request:
    return replace(make_request(name, now=now, patience=patience), impatient=True)


def busy(seconds: int = 30) -> Scheduler:
    """A scheduler of one replica that finishes a request each quarter of a second, before which 40 wait."""
    scheduler = make_scheduler()
    number = 0
    for quarter in range(seconds * 4):
        now = quarter / 4
        while len(scheduler.lanes.jobs) < 39:
            scheduler.submit(make_request(f"q{(number := number + 1)}", now=now, patience=600.0), now)
        scheduler.step(now)
        lease, _ = next(iter(scheduler.leases.values()))
        scheduler.release(lease, Ending.FINISHED, None, now)
    return scheduler


def test_it_goes_elsewhere_where_the_wait_is_longer_than_its_patience() -> None:
    scheduler, now = busy(), 30.0
    shown = scheduler.forecasts.shown(scheduler.lanes.lanes[0], now)
    assert shown is not None
    assert shown[1] > 6.0
    patient = scheduler.submit(make_request("patient", now=now, patience=2.0), now)
    assert patient.kind is AdmissionKind.QUEUE
    scheduler.cancel("patient", now)
    arrived, missed = (sum(getattr(flow, of) for flow in scheduler.snapshot(now).flows) for of in ("arrived", "missed"))
    hasty = scheduler.submit(impatient("hasty", now, 2.0), now)
    assert (hasty.kind, hasty.cause) == (AdmissionKind.REJECT, RejectCause.PATIENCE)
    assert scheduler.submit(impatient("calm", now, 100.0), now).accepted
    flows = scheduler.snapshot(now).flows
    assert sum(flow.arrived for flow in flows) == arrived + 2, "what goes elsewhere is demand here"
    assert sum(flow.missed for flow in flows) == missed + 1
    assert scheduler.submit(replace(make_request("back", now=now), counted=True), now).accepted
    assert sum(flow.arrived for flow in scheduler.snapshot(now).flows) == arrived + 2


def test_it_waits_where_there_is_room() -> None:
    scheduler = make_scheduler()
    assert scheduler.submit(impatient("first", patience=0.001), 0.0).kind is AdmissionKind.ADMIT


def test_it_goes_elsewhere_where_no_replica_is_and_nobody_knows_of_one() -> None:
    scheduler = make_scheduler(replicas=0)
    assert scheduler.submit(impatient("q"), 0.0).cause is RejectCause.PATIENCE
    assert scheduler.submit(impatient("q"), 0.0, admitted=True).cause is RejectCause.PATIENCE
    scheduler.expect_replica(5.0, 0.0)
    assert scheduler.submit(impatient("near", patience=20.0), 0.0).accepted
    scheduler.expect_replica(60.0, 0.0)
    assert scheduler.submit(impatient("far"), 0.0).cause is RejectCause.STARTING


def test_what_waits_leaves_as_the_last_replica_is_lost() -> None:
    scheduler = make_scheduler()
    for number in range(6):
        scheduler.submit(impatient(f"i{number}"), 0.0)
        scheduler.submit(make_request(f"p{number}"), 0.0)
    placed = {one.request.request_id for one in scheduler.step(0.0).placements}
    scheduler.replica_unresponsive("r0", 1.0)
    assert not scheduler.step(1.0).turned_away, "it may speak again"
    scheduler.replica_lost("r0", 2.0)
    gone = scheduler.step(2.0).turned_away
    assert {one.request.request_id for one in gone} == {f"i{number}" for number in range(6)} - placed
    assert {one.admission.cause for one in gone} == {RejectCause.PATIENCE}
    scheduler.replica_up("r1", CAPACITY, 3.0)
    assert scheduler.step(3.0).placements
