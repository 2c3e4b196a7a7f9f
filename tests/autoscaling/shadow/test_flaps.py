from autoscaling.shadow.contest import Change, flaps


def flat(at_s: float) -> float:
    return 3.2


def test_up_and_down_again_without_reason_is_a_flap() -> None:
    assert flaps([Change(0, 3, 4), Change(300, 4, 3)], flat) == 1
    assert flaps([Change(0, 3, 2), Change(300, 2, 3), Change(500, 3, 2)], flat) == 2


def test_a_reversal_after_ten_minutes_or_for_a_load_that_changed_is_none() -> None:
    assert flaps([Change(0, 3, 4), Change(700, 4, 3)], flat) == 0
    assert flaps([Change(0, 3, 4), Change(300, 4, 3)], lambda at_s: 4.0 if at_s < 200 else 2.5) == 0


def test_steps_in_one_direction_are_no_flaps() -> None:
    assert flaps([Change(0, 5, 4), Change(60, 4, 3), Change(120, 3, 2)], flat) == 0
