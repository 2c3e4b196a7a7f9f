"""The fluid model, and what counts as a flap."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoscaling.shadow.contest import CountChange, FluidFleet, flaps


def test_what_one_replica_carries_is_never_short() -> None:
    fleet = FluidFleet(1, 0.0)
    for second in range(1, 101):
        fleet.pass_time(float(second), 9.0, 10.0, 1.0)
    assert (fleet.backlog, fleet.short_s, fleet.paid_s) == (0.0, 0.0, 100.0)


def test_a_burst_is_short_until_it_is_worked_off() -> None:
    fleet = FluidFleet(1, 0.0)
    fleet.pass_time(1.0, 110.0, 10.0, 2.0)
    for second in range(2, 21):
        fleet.pass_time(float(second), 0.0, 10.0, 2.0)
    assert fleet.short_s == 8.0  # 100 left after the first second, 20 of them may wait
    assert fleet.backlog == 0.0


def test_a_start_takes_its_time_and_is_paid_for() -> None:
    fleet = FluidFleet(0, 0.0)
    fleet.ask(1, 5.0)
    for second in range(1, 11):
        fleet.pass_time(float(second), 1.0, 100.0, 0.5)
    assert fleet.short_s == 4.0  # at 5 s it is there
    assert fleet.paid_s == 10.0


def test_what_has_not_started_goes_first_and_what_is_not_known_is_not_short() -> None:
    fleet = FluidFleet(2, 0.0)
    fleet.ask(4, 60.0)
    fleet.ask(2, 60.0)
    assert (fleet.ready, fleet.asked) == (2, 2)
    fleet.ask(1, 60.0)
    assert (fleet.ready, fleet.asked) == (1, 1)
    fleet.pass_time(5.0, 1e9, math.inf, 0.1)
    assert fleet.short_s == 0.0


@given(st.lists(st.tuples(st.integers(0, 9), st.floats(0, 1e4), st.floats(0.1, 30)), max_size=30))
def test_more_replicas_are_never_shorter(steps: list[tuple[int, float, float]]) -> None:
    few, many, now = FluidFleet(1, 0.0), FluidFleet(2, 0.0), 0.0
    for number, arrived, passed in steps:
        now += passed
        for fleet, more in ((few, 0), (many, 1)):
            fleet.pass_time(now, arrived, 50.0, 1.0)
            fleet.ask(number + more, 5.0)
    assert many.short_s <= few.short_s
    assert many.paid_s >= few.paid_s
    assert few.asked == pytest.approx(steps[-1][0] if steps else 1)


def flat(at_s: float) -> float:
    return 3.2


def test_up_and_down_again_without_reason_is_a_flap() -> None:
    assert flaps([CountChange(0, 3, 4), CountChange(300, 4, 3)], flat) == 1
    assert flaps([CountChange(0, 3, 2), CountChange(300, 2, 3), CountChange(500, 3, 2)], flat) == 2


def test_a_reversal_after_ten_minutes_or_for_a_load_that_changed_is_none() -> None:
    assert flaps([CountChange(0, 3, 4), CountChange(700, 4, 3)], flat) == 0
    assert flaps([CountChange(0, 3, 4), CountChange(300, 4, 3)], lambda at_s: 4.0 if at_s < 200 else 2.5) == 0


def test_steps_in_one_direction_are_no_flaps() -> None:
    assert flaps([CountChange(0, 5, 4), CountChange(60, 4, 3), CountChange(120, 3, 2)], flat) == 0
