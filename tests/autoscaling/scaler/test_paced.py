from autoscaling.scaler.autoscaler import Autoscaler
from autoscaling.scaler.bounds import Bounds
from autoscaling.scaler.controls import Control, ControlKind
from autoscaling.scaler.paced import PacedScaler
from tests.autoscaling.scaler.moments import moment
from tests.autoscaling.scaler.test_autoscaler import Says


def paced(period_s: float) -> tuple[PacedScaler, Says]:
    law = Says(*range(3, 10))
    law.period_s = period_s
    return PacedScaler(Autoscaler(law, Bounds(0, 20))), law


def test_a_slow_law_is_asked_in_its_own_time_and_its_number_stands_between() -> None:
    scaler, _ = paced(15.0)
    numbers = [scaler.decide(moment(float(second))).requested for second in range(31)]
    assert numbers == [3] * 15 + [4] * 15 + [5]


def test_what_is_repeated_is_of_this_moment() -> None:
    scaler, _ = paced(15.0)
    scaler.decide(moment(0.0, ready=2))
    again = scaler.decide(moment(1.0, ready=3))
    assert (again.at_s, again.applied, again.ready, again.requested) == (1.0, 3, 3, 3)


def test_readings_that_come_a_little_early_do_not_skip_a_turn() -> None:
    scaler, law = paced(1.0)
    for second in range(6):
        scaler.decide(moment(second * 0.98))
    assert len(law.numbers) == 1


def test_an_operators_word_is_followed_at_once() -> None:
    scaler, _ = paced(600.0)
    scaler.decide(moment(0.0))
    pin = (Control(ControlKind.PIN, 7, 1e12),)
    assert scaler.decide(moment(1.0), pin).requested == 7
    assert scaler.decide(moment(2.0), pin).requested == 7
    assert scaler.decide(moment(3.0)).reason == "demand"
