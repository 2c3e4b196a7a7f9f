from dataclasses import replace

from autoscaling.shadow.pair import Probation
from autoscaling.signals.signals import Signals
from tests.autoscaling.scaler.moments import moment


def at(second: int, kept: int, missed: int, epoch: int = 1) -> Signals:
    signals = moment(float(second), epoch=epoch)
    return replace(signals, flows=(replace(signals.flows[0], kept=kept, missed=missed),))


def failed_at(share_missed: float, within_s: float = 600.0, until: int = 700) -> int | None:
    probation = Probation(0.0, within_s, 120.0, 10.0)
    for second in range(until):
        missed = int(10 * second * share_missed)
        if probation.look(at(second, 10 * second - missed, missed)):
            return second
    return None


def test_a_law_that_keeps_its_promises_passes() -> None:
    assert failed_at(0.0) is None
    assert failed_at(0.05) is None  # five times what 99 % allow


def test_one_that_burns_is_taken_back_once_a_whole_span_is_its_own() -> None:
    assert failed_at(0.2) == 120


def test_after_its_time_it_is_on_probation_no_more() -> None:
    probation = Probation(0.0, 60.0, 10.0, 10.0)
    assert not any(probation.look(at(second, 0, 10 * max(0, second - 60))) for second in range(200))


def test_a_new_owners_counts_begin_anew() -> None:
    probation = Probation(0.0, 600.0, 120.0, 10.0)
    for second in range(150):
        assert not probation.look(at(second, 1_000 * second, 0))
    assert not any(probation.look(at(second, 10 * (second - 150), 4, epoch=2)) for second in range(150, 400))


def test_a_handful_says_nothing() -> None:
    probation = Probation(0.0, 600.0, 120.0, 10.0)
    assert not any(probation.look(at(second, 0, min(4, second))) for second in range(300))
