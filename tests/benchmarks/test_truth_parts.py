"""Where measured TTFTs cross an SLO, and how sure that is."""

import math

import numpy as np
import pytest

from benchmarks.truth import RatePoint, TrueRate, crossing, true_rate

RATES = np.array([8.0, 9.0, 10.0, 11.0])


def points(noise: float, slope: float = 4.0) -> list[RatePoint]:
    """TTFTs of 1 s at 9.5 requests/s, with five runs each."""
    spread = np.linspace(-noise, noise, 5)
    return [RatePoint(rate, tuple(np.exp(slope * math.log(rate / 9.5) + spread).tolist())) for rate in RATES.tolist()]


def test_the_crossing_is_between_the_rates_around_it() -> None:
    ttft_s = np.array([(rate / 9.5) ** 4 for rate in RATES])
    assert crossing(RATES, ttft_s, 1.0) == pytest.approx(9.5)
    assert crossing(RATES, 0.1 * ttft_s, 1.0) == 11.0
    assert crossing(RATES, 10 * ttft_s, 1.0) == 8.0


def test_a_ttft_that_falls_by_chance_does_not_cross_twice() -> None:
    assert crossing(RATES, np.array([0.5, 2.0, 0.9, 4.0]), 1.0) < 9.0


@pytest.mark.parametrize("noise", [0.01, 0.2])
def test_the_interval_holds_the_rate_and_grows_with_the_noise(noise: float) -> None:
    found = true_rate(points(noise)[::-1], 1.0)
    assert found.per_s == pytest.approx(9.5)
    assert found.low < 9.5 < found.high
    # A mean of five runs varies by noise / sqrt(2 * 5); the rate by a fourth of that.
    assert found.high - found.low == pytest.approx(2 * 1.96 * 9.5 * noise / math.sqrt(10) / 4, rel=0.5)


def test_answers_that_never_came_count_as_late() -> None:
    late = [RatePoint(8.0, (0.5, 0.5)), RatePoint(10.0, (math.inf, math.inf))]
    assert 8.0 < true_rate(late, 1.0).per_s < 10.0


def test_ten_percent_beyond_the_interval_is_allowed() -> None:
    true = TrueRate(10.0, 9.0, 11.0)
    assert [true.allows(stated) for stated in (8.0, 8.2, 10.0, 12.0, 12.2)] == [False, True, True, True, False]
