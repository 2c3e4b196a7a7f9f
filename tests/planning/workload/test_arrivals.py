"""The rate over time, and arrivals at it: integral and inverse agree, days and spikes are where they should be, counts
and burstiness hold."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from planning.workload.arrivals import (
    GapKind,
    RateCurve,
    Spike,
    WallClock,
    day_rate,
    gaps,
    renewal_arrivals,
    unit_points,
)

knots = st.dictionaries(
    st.integers(0, 23).map(float), st.sampled_from([0.0, 0.01, 0.5, 3.0, 40.0]), min_size=1, max_size=6
).map(lambda table: sorted(table.items()))
spikes = st.lists(
    st.builds(Spike, st.floats(0, 200_000), st.floats(1, 50_000), st.sampled_from([0.0, 0.5, 7.0])), max_size=3
)
rates = st.builds(
    day_rate,
    knots,
    st.floats(60, 400_000),
    st.builds(WallClock, st.floats(-12, 38), st.integers(0, 6)),
    st.lists(st.sampled_from([0.0, 0.3, 1.0]), min_size=7, max_size=7),
    spikes,
    st.sampled_from([0.25, 1.0]),
)


@pytest.mark.whole
@given(rates, st.lists(st.floats(0, 0.999999), min_size=1, max_size=20))
def test_the_inverse_gives_the_integral_back(rate: RateCurve, shares: list[float]) -> None:
    desired = np.sort(np.array(shares)) * rate.expected_requests
    at_s = rate.when(desired)
    assert ((at_s >= 0) & (at_s <= rate.edges_s[-1])).all()
    assert (np.diff(at_s) >= -1e-6).all()
    np.testing.assert_allclose(rate.expected(at_s), desired, rtol=1e-6, atol=1e-5)


def at(rate: RateCurve, hour: float) -> float:
    before, after = rate.expected(np.array([hour * 3_600 - 0.5, hour * 3_600 + 0.5]))
    return float(after - before)


def test_the_curve_goes_around_midnight_by_the_clock_and_the_weekday() -> None:
    rate = day_rate(
        [(6, 1.0), (18, 3.0)], 3 * 86_400, WallClock(hour=12, weekday=4), weekdays=[1, 1, 1, 1, 1, 0.5, 0.0]
    )
    assert at(rate, 3) == pytest.approx(2.5)  # Friday, 15:00
    assert at(rate, 6) == pytest.approx(3.0, abs=0.001)
    assert at(rate, 11.99) == pytest.approx(2.0, abs=0.01)
    assert at(rate, 12.01) == pytest.approx(1.0, abs=0.01)  # Saturday
    assert at(rate, 40) == 0.0  # Sunday
    assert at(rate, 66) == pytest.approx(1.0, abs=0.001)  # Monday, 6:00


@pytest.mark.whole
@pytest.mark.parametrize("kind", ["gamma", "weibull"])
@pytest.mark.parametrize("shape", [0.3, 1.0, 4.0])
def test_the_count_is_right_from_the_first_moment_on(kind: GapKind, shape: float) -> None:
    """An ordinary renewal process, started with a whole gap, would show a bias at so short a time."""
    rng = np.random.default_rng(3)
    counts = [len(unit_points(kind, shape, 1.5, rng)) for _ in range(20_000)]
    assert np.mean(counts) == pytest.approx(1.5, rel=0.05)


@pytest.mark.parametrize("kind", ["gamma", "weibull"])
def test_gaps_have_mean_one_and_small_shapes_come_in_bursts(kind: GapKind) -> None:
    rng = np.random.default_rng(0)
    spread = []
    for shape in (0.5, 1.0, 3.0):
        drawn = gaps(kind, shape, 200_000, rng)
        assert drawn.mean() == pytest.approx(1, rel=0.02)
        spread.append(drawn.std())
    assert spread[0] > 1.3 > spread[1] > 0.9 > spread[2]
    assert spread[1] == pytest.approx(1, rel=0.02)


@pytest.mark.whole
@given(rates, st.sampled_from(["gamma", "weibull"]), st.floats(0.3, 5), st.integers(0, 99))
def test_arrivals_are_in_order_and_follow_the_seed(rate: RateCurve, kind: GapKind, shape: float, seed: int) -> None:
    if rate.expected_requests > 20_000:
        return
    first, second = (renewal_arrivals(rate, kind, shape, np.random.default_rng(seed)) for _ in range(2))
    assert (first == second).all()
    assert (np.diff(first) >= -1e-6).all()


def test_a_spike_multiplies() -> None:
    rate = day_rate([(0, 2.0)], 1_000, spikes=[Spike(100, 50, 5.0), Spike(120, 10, 2.0)])
    assert rate.expected_requests == pytest.approx(2 * 1_000 + 50 * 8 + 10 * 10)
