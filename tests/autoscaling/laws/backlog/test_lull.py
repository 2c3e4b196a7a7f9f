"""A lull: when it begins and ends, and what steps down it allows."""

from dataclasses import replace

import pytest

from autoscaling.laws.backlog.lull import Lull
from deployments.scheduling.snapshot import FlowStats
from tests.autoscaling.scaler.moments import moment

WITHIN_S = 600.0


def played(lull: Lull, rates: list[tuple[float, float]], applied: int = 8) -> list[bool]:
    """Requests a second for so many seconds, evenly; whether there was a lull at the end of each."""
    at_s, arrived, told = getattr(lull, "played_until", (0.0, 0.0)), 0.0, []
    at_s, arrived = at_s
    for rate, seconds in rates:
        for _ in range(int(seconds)):
            at_s += 1.0
            arrived += rate
            flow = FlowStats("short", "interactive", int(arrived), 1_000 * arrived, 0, 0, 0, 2.0)
            lull.look(moment(at_s, ready=applied).showing(flows=(flow,)))
        told.append(lull.lasts)
    vars(lull)["played_until"] = (at_s, arrived)
    return told


def now(lull: Lull) -> float:
    return float(vars(lull)["played_until"][0])


def test_what_usually_comes_and_does_not_is_a_lull_until_it_comes_again() -> None:
    assert played(Lull(), [(5.0, 600), (0.0, 120), (5.0, 60)]) == [False, True, False]


def test_a_stray_request_ends_no_lull() -> None:
    assert played(Lull(), [(5.0, 600), (0.0, 120), (0.02, 600)]) == [False, True, True]


def test_a_smaller_load_is_none_and_neither_is_the_end_of_a_burst() -> None:
    assert played(Lull(), [(5.0, 1_800), (1.0, 600)]) == [False, False]
    assert played(Lull(), [(1.0, 1_800), (20.0, 120), (1.0, 600)]) == [False, False, False]


def test_too_few_to_tell_is_no_lull() -> None:
    assert played(Lull(), [(0.02, 3_600), (0.0, 600)]) == [False, False]


def test_what_has_been_gone_for_hours_is_usual_no_more() -> None:
    assert played(Lull(), [(5.0, 3_600), (0.1, 600), (0.1, 4 * 3_600)]) == [False, True, False]


def test_counts_that_begin_anew_are_no_lull() -> None:
    lull = Lull()
    played(lull, [(5.0, 600)])
    for second in range(60):
        flow = FlowStats("short", "interactive", 5 * second, 5_000.0 * second, 0, 0, 0, 2.0)
        lull.look(replace(moment(601.0 + second, ready=8), epoch=2).showing(flows=(flow,)))
        assert not lull.lasts


@pytest.mark.parametrize(("applied", "half"), [(8, 4), (7, 4), (2, 1), (1, 1)])
def test_at_most_half_goes_at_once_and_then_none_for_as_long_as_a_reversal_waits(applied: int, half: int) -> None:
    lull = Lull()
    assert lull.allowed(0.0, WITHIN_S, 1) == 1
    played(lull, [(5.0, 600), (0.0, 120)], applied)
    assert lull.allowed(now(lull), WITHIN_S, 1) == half
    played(lull, [(0.0, WITHIN_S - 1)], half)
    assert lull.allowed(now(lull), WITHIN_S, 1) == half
    played(lull, [(0.0, 2)], half)
    assert lull.allowed(now(lull), WITHIN_S, 1) == (half + 1) // 2


def test_a_step_waits_until_half_fits_but_not_for_ever() -> None:
    lull = Lull()
    played(lull, [(5.0, 1_200), (0.0, 120)])
    assert [lull.allowed(now(lull), WITHIN_S, fewer) for fewer in (7, 5, 4)] == [8, 8, 4]
    lull = Lull()
    played(lull, [(5.0, 1_200), (0.0, 120 + 2 * WITHIN_S)])
    assert lull.allowed(now(lull), WITHIN_S, 7) == 7


def test_a_step_that_a_rate_limit_makes_slow_may_go_on_to_its_half() -> None:
    lull = Lull()
    played(lull, [(5.0, 600), (0.0, 120)], 8)
    for applied in (8, 7, 6, 5, 4):
        assert lull.allowed(now(lull), WITHIN_S, 1) == 4
        played(lull, [(0.0, 60)], applied - 1 if applied > 4 else 4)
    assert lull.allowed(now(lull), WITHIN_S, 1) == 4


def test_what_was_added_meanwhile_rests_too() -> None:
    lull = Lull()
    played(lull, [(5.0, 600), (0.0, 120)], 8)
    assert lull.allowed(now(lull), WITHIN_S, 1) == 4
    played(lull, [(0.0, 60)], 4)
    played(lull, [(0.0, 60)], 6)
    assert lull.allowed(now(lull), WITHIN_S, 1) == 6
