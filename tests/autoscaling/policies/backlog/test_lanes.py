from dataclasses import replace

from autoscaling.policies.backlog.lanes import LaneTargets, worst
from autoscaling.policies.backlog.settings import BacklogSettings
from autoscaling.signals.signals import Signals
from tests.autoscaling.facts import lane_like
from tests.autoscaling.scaler.moments import moment


def waiting(**work: float) -> Signals:
    base = moment(arrived_work=50_000.0)
    flows = (base.flows[0], replace(base.flows[0], lane="long", slo_s=4.0))
    return base.showing(lanes=tuple(lane_like(name, 1, amount, 0.0) for name, amount in work.items()), flows=flows)


def targets(signals: Signals, **settings: float) -> dict[str, float]:
    known = LaneTargets(BacklogSettings(**settings))  # type: ignore[arg-type]
    known.look(signals)
    return {wait.name: wait.target_s for wait in known.waits(signals)}


def test_a_lane_may_wait_a_share_of_its_tightest_promise_and_the_last_one_longer() -> None:
    assert targets(waiting(short=1.0, long=1.0, promoted=1.0)) == {"short": 1.0, "long": 5.0, "promoted": 1.0}
    assert targets(waiting(short=1.0, long=1.0), long_wait_s=1.0, target_wait=1.0) == {"short": 2.0, "long": 4.0}


def test_what_is_promised_more_is_ahead() -> None:
    signals = waiting(short=100.0, long=900.0)
    known = LaneTargets(BacklogSettings())
    known.look(signals)
    assert [(wait.name, wait.work_ahead) for wait in known.waits(signals)] == [("short", 100.0), ("long", 1_000.0)]
    found = worst(known.waits(signals), 50.0)
    assert found is not None
    assert (found[1].name, found[0]) == ("long", 4.0)
    assert worst(known.waits(signals), 0.0) is not None
    assert worst((), 0.0) is None
