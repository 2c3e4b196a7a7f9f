"""Signals are the same from the scheduler itself and from its owner's page."""

from autoscaling.signals.from_snapshot import Moment, signals_from, signals_of
from autoscaling.signals.signals import Forecast, ReplicaState
from deployments.cell.latency import Latencies
from deployments.cell.scaling_books import Books, read_books
from tests.deployments.scheduling.world import CAPACITY, make_request, make_scheduler

MOMENT = Moment(at_s=50.0, unix_s=1e9, applied=4)


def test_the_page_says_what_the_scheduler_says() -> None:
    scheduler = make_scheduler(2)
    for number in range(30):
        scheduler.submit(make_request(f"q{number}", 10 + 40 * number), 0.0)
    scheduler.step(0.0)
    scheduler.replica_suspect("r1", 1.0)
    snapshot = scheduler.snapshot(2.0)
    forecast = Forecast(0.0, 60.0, (1.0,), (0.1,))
    page = Books("m", 7, 0.5, snapshot, {"interactive": 0.95}, Latencies(30.0, 5, 0.1, 0.2, 0.3, 0.04))
    signals = signals_from(read_books(page.encode()), Moment(50.0, 1e9, 4, age_s=0.25, schedulable=9), forecast)
    assert (signals.epoch, signals.age_s, signals.schedulable, signals.applied, signals.starting) == (7, 0.75, 9, 4, 2)
    assert signals.latencies is not None
    assert (signals.latencies.requests, signals.latencies.tpot_p90_s) == (5, 0.04)
    assert {flow.attainment for flow in signals.flows} == {0.95}
    direct = signals_of(snapshot, Moment(50.0, 1e9, 4, 7, 0.75, 9), {"interactive": 0.95}, signals.latencies, forecast)
    assert signals == direct


def test_a_cordoned_replica_is_there_and_not_ready() -> None:
    scheduler = make_scheduler(3)
    scheduler.replica_cordoned("r0", 0.0)
    scheduler.replica_draining("r1", 0.0)
    signals = signals_of(scheduler.snapshot(1.0), MOMENT, {})
    assert [replica.state for replica in signals.replicas] == [ReplicaState.CORDONED, ReplicaState.DRAINING, ReplicaState.READY]
    assert (signals.ready, signals.starting) == (1, 2)
    scheduler.replica_up("r1", CAPACITY, 2.0)
    assert signals_of(scheduler.snapshot(2.0), MOMENT, {}).starting == 1
