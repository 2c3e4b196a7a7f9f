from autoscaling.scaler.autoscaler import Autoscaler, PacedScaler
from autoscaling.scaler.controls import Control, ControlKind
from autoscaling.scaler.decision import Bounds
from tests.autoscaling.scaler.moments import moment
from tests.autoscaling.scaler.test_autoscaler import Says


def paced(period_s: float) -> tuple[PacedScaler, Says]:
    law = Says(*range(3, 10))
    law.period_s = period_s
    return PacedScaler(Autoscaler(law, Bounds(0, 20))), law


def test_a_slow_law_is_asked_in_its_own_time_and_its_number_stands_between() -> None:
    scaler, _ = paced(15.0)
    numbers = [2]
    for second in range(31):
        numbers.append(scaler.decide(moment(float(second), ready=numbers[-1])).requested)
    assert numbers == [2, *[3] * 15, *[4] * 15, 5]


def test_what_is_repeated_is_of_this_moment() -> None:
    scaler, _ = paced(15.0)
    scaler.decide(moment(0.0, ready=2))
    again = scaler.decide(moment(1.0, ready=2, applied=3))
    assert (again.at_s, again.applied, again.ready, again.requested) == (1.0, 3, 2, 3)


def test_readings_that_come_a_little_early_do_not_skip_a_turn() -> None:
    scaler, law = paced(1.0)
    applied = 2
    for second in range(6):
        applied = scaler.decide(moment(second * 0.98, ready=applied)).requested
    assert len(law.numbers) == 1


def test_an_operators_word_is_followed_at_once() -> None:
    scaler, _ = paced(600.0)
    scaler.decide(moment(0.0, ready=3))
    pin = (Control(ControlKind.PIN, 7, 1e12),)
    assert scaler.decide(moment(1.0, ready=3), pin).requested == 7
    assert scaler.decide(moment(2.0, ready=7), pin).requested == 7
    assert scaler.decide(moment(3.0, ready=7)).reason == "demand"


def test_old_books_and_another_hand_do_not_wait_for_the_laws_turn() -> None:
    scaler, _ = paced(600.0)
    assert scaler.decide(moment(0.0, ready=3)).requested == 3
    stale = scaler.decide(moment(1.0, ready=3, age_s=60.0))
    assert (stale.reason, stale.requested) == ("stale", 3)
    assert scaler.decide(moment(2.0, ready=3)).reason == "demand"
    assert scaler.decide(moment(3.0, ready=9)).requested == 4
