"""Bins: what is counted, summed, spread or held in them adds up to what went in."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from planning.simulator.bins import MAX_BINS, Bins, bins_for

TIMES = st.lists(st.floats(0, 1_000, allow_nan=False), max_size=40)


def column(values: list[float]) -> np.ndarray:
    return np.array(values, dtype=np.float64)


@given(st.floats(0, 1e9))
def test_bins_cover_the_run_and_are_not_too_many(length_s: float) -> None:
    bins = bins_for(length_s)
    assert 1 <= bins.count <= MAX_BINS
    assert bins.edges_s[-1] > length_s or bins.edges_s[-1] == pytest.approx(length_s)


@given(TIMES, st.floats(0.5, 300))
def test_counts_and_sums_add_up(times: list[float], width: float) -> None:
    bins = Bins(width, 7)  # what lies beyond counts to the last bin
    known = column([*times, np.nan])
    assert bins.counts(known).sum() == len(times)
    assert bins.sums(known, np.append(column(times), 5.0)).sum() == pytest.approx(sum(times))


@pytest.mark.whole
@given(st.lists(st.tuples(st.floats(0, 900), st.floats(0, 99), st.floats(0, 1e5)), max_size=30))
def test_what_is_spread_adds_up_and_is_nowhere_negative(parts: list[tuple[float, float, float]]) -> None:
    begins, lengths, amounts = (column([part[index] for part in parts]) for index in range(3))
    spread = Bins(10.0, 100).spread(begins, begins + lengths, amounts)
    assert (spread >= 0).all()
    assert spread.sum() == pytest.approx(amounts.sum(), rel=1e-6, abs=1e-3)


@pytest.mark.whole
@given(st.lists(st.tuples(st.floats(0, 99), st.floats(0.001, 50)), max_size=40))
def test_levels_are_those_of_a_count_by_hand(stays: list[tuple[float, float]]) -> None:
    bins = Bins(2.0, 80)
    ups = column([up for up, _ in stays])
    downs = column([up + stay for up, stay in stays])
    after, maximum = bins.levels(ups, downs)
    assert after.tolist() == [int(((ups < edge) & (downs >= edge)).sum()) for edge in bins.edges_s[1:]]
    assert (maximum >= after).all()
    assert (after >= 0).all()
    assert maximum.max(initial=0) <= len(stays)


@given(TIMES.filter(bool), st.sampled_from([0.05, 0.5, 0.95, 1.0]))
def test_quantiles_are_those_of_each_bin(times: list[float], level: float) -> None:
    bins = Bins(100.0, 11)
    values = column(times)[::-1] + 1
    (found,) = bins.quantiles(column(times), values, (level,))
    index = bins.of(column(times))
    for number in range(bins.count):
        own = values[index == number]
        expected = np.quantile(own, level, method="inverted_cdf") if len(own) else np.nan
        assert found[number] == pytest.approx(expected, nan_ok=True)


def test_a_bin_without_a_sample_has_the_last_one() -> None:
    bins = Bins(1.0, 5)
    assert bins.means(column([1.2, 1.4, 3.5]), column([2, 4, 9])).tolist() == [0, 3, 3, 9, 9]
    assert bins.maximum(column([1.2, 1.4, 3.5]), column([2, 4, 9])).tolist() == [0, 4, 4, 9, 9]
