"""Signals are the same from the scheduler itself and from its owner's page."""

import pytest

from autoscaling.signals.signals import Forecast, signals_of
from deployments.cell.scaling_facts import ScalingFacts, read_scaling_facts
from deployments.scheduling.replica import ReplicaStatus
from deployments.wire import encode
from tests.deployments.scheduling.world import CAPACITY, make_request, make_scheduler


def test_the_page_says_what_the_scheduler_says() -> None:
    scheduler = make_scheduler(2)
    for number in range(30):
        scheduler.submit(make_request(f"q{number}", 10 + 40 * number), 0.0)
    scheduler.step(0.0)
    scheduler.replica_unresponsive("r1", 1.0)
    snapshot = scheduler.snapshot(2.0)
    forecast = Forecast(0.0, 60.0, (1.0,), (0.1,))
    page = read_scaling_facts(encode(ScalingFacts("m", 7, 0.5, snapshot, {"interactive": 0.95})))
    common = {"epoch": 7, "age_s": 0.75, "schedulable": 9, "forecast": forecast}
    signals = signals_of(page.snapshot, 50.0, 1e9, 4, page.attainment, **common)
    assert (signals.epoch, signals.age_s, signals.schedulable, signals.applied, signals.starting) == (7, 0.75, 9, 4, 2)
    assert signals.allowed("interactive") == pytest.approx(0.05)
    assert signals.allowed("other") == pytest.approx(0.01)
    assert signals == signals_of(snapshot, 50.0, 1e9, 4, {"interactive": 0.95}, **common)


def test_a_cordoned_replica_is_there_and_not_ready() -> None:
    scheduler = make_scheduler(3)
    scheduler.replica_cordoned("r0", 0.0)
    scheduler.replica_draining("r1", 0.0)
    signals = signals_of(scheduler.snapshot(1.0), 50.0, 1e9, 4, {})
    assert [replica.status for replica in signals.replicas] == [
        ReplicaStatus.CORDONED,
        ReplicaStatus.DRAINING,
        ReplicaStatus.READY,
    ]
    assert (signals.ready, signals.starting) == (1, 2)
    scheduler.replica_up("r1", CAPACITY, 2.0)
    assert signals_of(scheduler.snapshot(2.0), 50.0, 1e9, 4, {}).starting == 1
