"""The pure parts of the serving benchmark: intervals, points, flags, specs."""

import math
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.harness import median_interval
from benchmarks.serving.contest import parse_points, requests_for


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=60), st.sampled_from([0.5, 0.9, 0.99]))
def test_the_interval_holds_the_median_and_says_what_it_covers(values: list[float], coverage: float) -> None:
    estimate = median_interval(values, coverage)
    assert min(values) <= estimate.low <= estimate.median <= estimate.high <= max(values)
    assert estimate.median == statistics.median(values)
    widest = 1 - 2 * 0.5 ** len(values)
    assert estimate.coverage >= coverage or math.isclose(estimate.coverage, max(0.0, widest))


def test_five_rounds_give_their_range_at_94_percent() -> None:
    estimate = median_interval([0.97, 1.01, 0.99, 0.98, 1.0])
    assert (estimate.low, estimate.median, estimate.high, estimate.coverage) == (0.97, 0.99, 1.01, 0.9375)


def test_points_are_numbers_or_multiples_of_the_engines_slots() -> None:
    assert parse_points("8, 32,4x", 64) == (8, 32, 256)
    for bad in ("", "0", "8,", "x", "-1", "4y"):
        with pytest.raises(ValueError, match="allowed: a concurrency"):
            parse_points(bad, 64)


@given(st.integers(1, 512), st.floats(0.01, 1_000), st.floats(0.1, 60))
def test_a_round_is_whole_waves(concurrency: int, rate: float, round_s: float) -> None:
    requests = requests_for(concurrency, rate, round_s)
    assert requests % concurrency == 0
    assert requests >= 2 * concurrency
    assert requests / rate <= max(round_s + concurrency / rate, 2 * concurrency / rate) + 1e-6
