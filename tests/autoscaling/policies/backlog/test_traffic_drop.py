"""A traffic drop: when it begins and ends, and what steps down it allows."""

from dataclasses import replace

import pytest

from autoscaling.policies.backlog.traffic_drop import TrafficDrop
from deployments.scheduling.snapshot import FlowStats
from tests.autoscaling.scaler.moments import moment

WITHIN_S = 600.0


def outcome(traffic_drop: TrafficDrop, rates: list[tuple[float, float]], applied: int = 8) -> list[bool]:
    """Requests a second for so many seconds, evenly; whether there was a traffic drop at the end of each."""
    at_s, arrived, reported = getattr(traffic_drop, "outcome_until", (0.0, 0.0)), 0.0, []
    at_s, arrived = at_s
    for rate, seconds in rates:
        for _ in range(int(seconds)):
            at_s += 1.0
            arrived += rate
            flow = FlowStats("short", "interactive", int(arrived), 1_000 * arrived, 0, 0, 0, 2.0)
            traffic_drop.look(moment(at_s, ready=applied).showing(flows=(flow,)))
        reported.append(traffic_drop.lasts)
    vars(traffic_drop)["outcome_until"] = (at_s, arrived)
    return reported


def now(traffic_drop: TrafficDrop) -> float:
    return float(vars(traffic_drop)["outcome_until"][0])


def test_what_usually_comes_and_does_not_is_a_traffic_drop_until_it_comes_again() -> None:
    assert outcome(TrafficDrop(), [(5.0, 600), (0.0, 120), (5.0, 60)]) == [False, True, False]


def test_a_stray_request_ends_no_traffic_drop() -> None:
    assert outcome(TrafficDrop(), [(5.0, 600), (0.0, 120), (0.02, 600)]) == [False, True, True]


def test_a_smaller_load_is_none_and_neither_is_the_end_of_a_burst() -> None:
    assert outcome(TrafficDrop(), [(5.0, 1_800), (1.0, 600)]) == [False, False]
    assert outcome(TrafficDrop(), [(1.0, 1_800), (20.0, 120), (1.0, 600)]) == [False, False, False]


def test_too_few_to_tell_is_no_traffic_drop() -> None:
    assert outcome(TrafficDrop(), [(0.02, 3_600), (0.0, 600)]) == [False, False]


@pytest.mark.whole
def test_what_has_been_gone_for_hours_is_usual_no_more() -> None:
    assert outcome(TrafficDrop(), [(5.0, 3_600), (0.1, 600), (0.1, 4 * 3_600)]) == [False, True, False]


def test_counts_that_begin_anew_are_no_traffic_drop() -> None:
    traffic_drop = TrafficDrop()
    outcome(traffic_drop, [(5.0, 600)])
    for second in range(60):
        flow = FlowStats("short", "interactive", 5 * second, 5_000.0 * second, 0, 0, 0, 2.0)
        traffic_drop.look(replace(moment(601.0 + second, ready=8), epoch=2).showing(flows=(flow,)))
        assert not traffic_drop.lasts


@pytest.mark.parametrize(("applied", "half"), [(8, 4), (7, 4), (2, 1), (1, 1)])
def test_at_most_half_goes_at_once_and_then_none_for_as_long_as_a_reversal_waits(applied: int, half: int) -> None:
    traffic_drop = TrafficDrop()
    assert traffic_drop.allowed(0.0, WITHIN_S, 1) == 1
    outcome(traffic_drop, [(5.0, 600), (0.0, 120)], applied)
    assert traffic_drop.allowed(now(traffic_drop), WITHIN_S, 1) == half
    outcome(traffic_drop, [(0.0, WITHIN_S - 1)], half)
    assert traffic_drop.allowed(now(traffic_drop), WITHIN_S, 1) == half
    outcome(traffic_drop, [(0.0, 2)], half)
    assert traffic_drop.allowed(now(traffic_drop), WITHIN_S, 1) == (half + 1) // 2


def test_a_step_waits_until_half_fits_but_not_for_ever() -> None:
    traffic_drop = TrafficDrop()
    outcome(traffic_drop, [(5.0, 1_200), (0.0, 120)])
    assert [traffic_drop.allowed(now(traffic_drop), WITHIN_S, fewer) for fewer in (7, 5, 4)] == [8, 8, 4]
    traffic_drop = TrafficDrop()
    outcome(traffic_drop, [(5.0, 1_200), (0.0, 120 + 2 * WITHIN_S)])
    assert traffic_drop.allowed(now(traffic_drop), WITHIN_S, 7) == 7


def test_a_step_that_a_rate_limit_makes_slow_may_go_on_to_its_half() -> None:
    traffic_drop = TrafficDrop()
    outcome(traffic_drop, [(5.0, 600), (0.0, 120)], 8)
    for applied in (8, 7, 6, 5, 4):
        assert traffic_drop.allowed(now(traffic_drop), WITHIN_S, 1) == 4
        outcome(traffic_drop, [(0.0, 60)], applied - 1 if applied > 4 else 4)
    assert traffic_drop.allowed(now(traffic_drop), WITHIN_S, 1) == 4


def test_what_was_added_meanwhile_rests_too() -> None:
    traffic_drop = TrafficDrop()
    outcome(traffic_drop, [(5.0, 600), (0.0, 120)], 8)
    assert traffic_drop.allowed(now(traffic_drop), WITHIN_S, 1) == 4
    outcome(traffic_drop, [(0.0, 60)], 4)
    outcome(traffic_drop, [(0.0, 60)], 6)
    assert traffic_drop.allowed(now(traffic_drop), WITHIN_S, 1) == 6
