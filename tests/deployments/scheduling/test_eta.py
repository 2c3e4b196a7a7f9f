"""What is promised, number by number: worked by hand from the formulas in eta.py."""

import math

import pytest

from deployments.scheduling.eta import (
    LaneEta,
    Outlook,
    WaitEstimate,
    Way,
    _at,
    _ratio,
    _Ratios,
    _Recent,
    _size,
    _stretched,
)

NEVER = math.inf


def taught(waits: list[float], forecast_s: float = 1.0, promotion_s: float = NEVER) -> LaneEta:
    """One that saw requests with that forecast wait so long, all in their turn, a second apart. What it learned of
    its own coverage is put back."""
    eta = LaneEta()
    for number, wait_s in enumerate(waits):
        eta.observe(eta.wait_estimate(Outlook(forecast_s, promotion_s, 2.0)), wait_s, Way.TURN, float(number))
    eta._slack = {way: [0.0, 0.0] for way in Way}
    return eta


def test_before_anything_is_known_the_forecast_is_told_and_three_times_it() -> None:
    assert LaneEta().predict(Outlook(1.0)) == WaitEstimate(Outlook(1.0), 1.0, pytest.approx(3.2), (Way.TURN, Way.TURN))


def test_a_forecast_that_ends_after_the_promotion_is_told_as_promoted() -> None:
    reported = LaneEta().predict(Outlook(1.0, 1.5, 9.0))
    assert (reported.p50_s, reported.ways) == (1.0, (Way.TURN, Way.PROMOTED))
    assert reported.p95_s == pytest.approx(1.5 + 3.0 * (9.0 + 0.075) - 0.075)
    assert LaneEta().predict(Outlook(1.0, 1.0, 9.0)).ways == (Way.TURN, Way.PROMOTED), "it may end with its turn"


def test_what_is_told_stretches_the_forecast_by_what_happened() -> None:
    eta = taught([1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0])
    reported = eta.predict(Outlook(1.0))
    assert reported.p50_s == pytest.approx(5.0)
    assert reported.p95_s == pytest.approx(9.0), "the longest of nine: the tenth exceeds it once in ten times"
    doubled = eta.predict(Outlook(2.02))
    assert doubled.p50_s == pytest.approx(5.02 * 2 - 0.02)


def test_a_share_that_was_promoted_makes_the_p95_that_of_the_promoted() -> None:
    eta = taught([1.0] * 8, promotion_s=60.0)
    for number in range(2):
        eta.promoted(eta.wait_estimate(Outlook(1.0, 60.0, 2.0)), 70.0 + number)
    for number in range(8):  # the promoted wait as long as was forecast, or twice as long
        eta._promoted.add(2.0 + 3.0, math.log((2.0 + 2 * (number % 2) + 3.0) / (2.0 + 3.0)), 80.0 + number)
    reported = eta.predict(Outlook(1.0, 60.0, 2.0))
    assert reported.p50_s == pytest.approx(1.0)
    assert reported.ways == (Way.TURN, Way.PROMOTED)
    # 8 of 10 are in their turn, so of the promoted the quantile (0.95 - 0.8) / 0.2 = 0.75 is told: the last four of
    # eight waited 4 s
    assert reported.p95_s == pytest.approx(64.0)


def test_where_all_were_promoted_the_level_itself_is_taken() -> None:
    eta = LaneEta()
    for number in range(9):
        eta._turn.add(1.0, NEVER, float(number))
        eta._promoted.add(2.0 + 3.0, float(number) / 10, float(number))
    reported = eta.predict(Outlook(1.0, 60.0, 2.0))
    assert reported.p50_s == pytest.approx(60.0 + 5.0 * math.exp(0.4) - 3.0)
    assert reported.ways == (Way.PROMOTED, Way.PROMOTED)


def test_where_nobody_is_promoted_any_more_no_wait_is_told_without_an_end() -> None:
    eta = LaneEta()
    for number in range(9):
        eta._turn.add(1.0, NEVER, float(number))
    assert eta.predict(Outlook(1.0)).p95_s == pytest.approx(3.2)


def test_the_p95_is_never_below_the_p50_nor_the_p50_below_nothing() -> None:
    eta = taught([0.0] * 9)
    eta._slack[Way.TURN] = [-9.0, -20.0]
    reported = eta.predict(Outlook(1.0))
    assert reported.p50_s == reported.p95_s == 0.0
    eta._slack[Way.TURN] = [1.0, -1.0]
    reported = eta.predict(Outlook(5.0))
    assert reported.p95_s == reported.p50_s > 0


def test_each_outcome_moves_the_slack_by_its_gain() -> None:
    eta = LaneEta()
    wait_estimate = eta.wait_estimate(Outlook(1.0))
    eta.observe(wait_estimate, 1.5, Way.TURN, 0.0)  # beyond the p50, within the p95; nothing else is open
    assert eta._slack[Way.TURN] == pytest.approx([0.05 * 0.5, 0.05 * -0.05])
    assert (eta.p50.within, eta.p50.total, eta.p95.within, eta.p95.total) == (0, 1, 1, 1)
    assert eta._slack[Way.PROMOTED] == [0.0, 0.0]


def test_a_wait_as_long_as_told_is_within() -> None:
    eta = LaneEta()
    eta.observe(eta.wait_estimate(Outlook(1.0)), 1.0, Way.TURN, 0.0)
    assert eta.p50.within == 1


def test_many_open_promises_make_the_gain_small() -> None:
    eta = LaneEta()
    wait_estimates = [eta.wait_estimate(Outlook(1.0)) for _ in range(41)]
    eta.observe(wait_estimates[0], 1.5, Way.TURN, 0.0)
    assert eta._slack[Way.TURN][0] == pytest.approx(0.05 / (1 + 40 / 20) * 0.5)
    for wait_estimate in wait_estimates[1:]:
        eta.gave_up(wait_estimate, 0.1)
    assert eta.open == 0
    assert (eta.p50.censored, eta.p95.censored, eta.p95.total) == (40, 40, 1)


def test_one_given_up_at_its_p95_is_censored_and_after_it_missed() -> None:
    eta = LaneEta()
    eta.gave_up(eta.wait_estimate(Outlook(1.0)), 3.19)
    assert (eta.p95.censored, eta.p95.total) == (1, 0)
    eta.gave_up(eta.wait_estimate(Outlook(1.0)), 3.21)
    assert (eta.p95.total, eta.p95.within, eta.p50.total) == (1, 0, 1)
    assert eta.open == 0


def test_an_outcome_where_a_promotion_was_told_moves_the_slack_when_it_would_have_come() -> None:
    eta = LaneEta()
    outlook = Outlook(30.0, 60.0, 2.0)
    assert eta.predict(outlook).ways == (Way.TURN, Way.PROMOTED)
    eta.observe(eta.wait_estimate(outlook), 20.0, Way.TURN, 20.0)
    assert eta._slack[Way.PROMOTED] == [0.0, 0.0]
    eta.observe(eta.wait_estimate(outlook), 20.0, Way.TURN, 61.0)
    assert eta._slack[Way.PROMOTED][1] < 0, "the first would have been promoted by now"


def test_what_the_promoted_waited_is_kept_as_a_ratio_over_the_same_floor_as_it_is_told_with() -> None:
    """The promotion is a minute ahead, so the floor is 3 s: what was forecast as 2 s and took 4 s is 7 to 5."""
    eta = LaneEta()
    outlook = Outlook(30.0, 60.0, 2.0)
    for number in range(8):
        eta.observe(eta.wait_estimate(outlook), 64.0, Way.PROMOTED, 64.0 + number)
    assert eta._promoted.near(2.0 + 3.0) == pytest.approx([math.log(7.0 / 5.0)] * 8)
    eta._slack = {way: [0.0, 0.0] for way in Way}
    assert eta.predict(outlook).p95_s == pytest.approx(64.0), "told as long as it took"


def test_ratios_are_kept_by_size_and_the_nearest_size_with_enough_speaks() -> None:
    ratios = _Ratios()
    for number in range(7):
        ratios.add(1.0, 0.1, float(number))
    assert ratios.near(1.0) is None, "seven are too few"
    ratios.add(1.0, 0.1, 7.0)
    assert ratios.near(1.0) == ratios.near(1.5) == ratios.near(1_000.0) == [0.1] * 8
    for number in range(8):
        ratios.add(4.0**5, 0.2, float(number))
    assert ratios.near(4.0**4) == [0.2] * 8
    assert ratios.near(4.0) == [0.1] * 8
    for number in range(7):
        ratios.add(4.0, 0.3, float(number))
    assert ratios.near(4.0) == [0.1] * 8, "its own size has too few yet"
    ratios.add(4.0, 0.3, 8.0)
    assert ratios.near(4.0) == [0.3] * 8
    assert ratios.near(4.0**3) == [0.3] * 8, "of two as near the smaller"


@pytest.mark.parametrize(("forecast_s", "size"), [(0.0, -3), (1.0, 0), (1.9, 0), (2.1, 1), (16.0, 2)])
def test_forecasts_within_a_factor_of_four_are_of_one_size(forecast_s: float, size: int) -> None:
    assert _size(forecast_s) == size


def test_recent_ratios_are_thinned_in_time_and_bounded() -> None:
    recent = _Recent()
    for number in range(8):
        recent.add(float(8 - number), 0.0)
    assert recent.ordered == [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]
    recent.add(99.0, 0.19)
    assert 99.0 not in recent.ordered
    recent.add(9.0, 0.2)
    assert recent.ordered[-1] == 9.0
    recent.add(99.0, 0.3)
    assert 99.0 not in recent.ordered, "the last one was at 0.2"
    for number in range(391):
        recent.add(0.5, 1.0 + number)
    assert len(recent.ordered) == 400
    recent.add(0.6, 1_000.0)
    assert len(recent.ordered) == 400
    assert 8.0 not in recent.ordered, "the first that came is the first that goes"
    assert recent.ordered[-2:] == [7.0, 9.0]


def test_a_quantile_lies_between_two_in_proportion_and_at_the_larger_where_that_has_no_end() -> None:
    assert _at([1.0, 2.0, 4.0], 0.5) == 2.0
    assert _at([1.0, 2.0, 4.0], 0.625) == 3.0
    assert _at([1.0, 2.0, 4.0], 0.1) == 1.0
    assert _at([1.0, 2.0, 4.0], 1.0) == 4.0
    assert _at([7.0], 0.95) == 7.0
    assert _at([1.0, 2.0, NEVER], 0.5) == 2.0
    assert _at([1.0, 2.0, NEVER], 0.6) == NEVER


def test_a_ratio_and_what_it_stretches_are_each_others_inverse() -> None:
    assert _ratio(1.98, 0.98) == pytest.approx(math.log(2))
    assert _stretched(0.98, math.log(2)) == pytest.approx(1.98)
    assert _stretched(0.98, NEVER) == NEVER
