"""Lengths and arrival times: what options mean, and that draws keep what they promise."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from planning.workload.arrivals import arrivals_within, poisson_arrivals
from planning.workload.lengths import Fixed, Lengths, LogNormal, Quantiles, Uniform, parse_lengths

tokens = st.integers(min_value=1, max_value=100_000)
lengths = st.one_of(
    st.builds(Fixed, tokens),
    st.tuples(tokens, tokens).map(lambda pair: Uniform(min(pair), max(pair))),
    st.lists(st.integers(1, 9_999), min_size=2, max_size=9).map(
        lambda values: Quantiles(
            tuple(np.linspace(0, 100, len(values)).round(3).tolist()), tuple(float(value) for value in sorted(values))
        )
    ),
    st.builds(LogNormal, st.integers(1, 9_999).map(float), st.integers(0, 50).map(lambda tenths: tenths / 10)),
)


@given(lengths)
def test_a_text_and_its_lengths_are_the_same_thing(desired: Lengths) -> None:
    assert parse_lengths(str(desired)) == desired


@given(lengths, st.integers(0, 2**32))
def test_draws_are_positive_and_follow_the_seed(desired: Lengths, seed: int) -> None:
    first, second = (desired.sample(50, np.random.default_rng(seed)) for _ in range(2))
    assert (first == second).all()
    assert (first >= 1).all()
    if isinstance(desired, Uniform):
        assert desired.low <= first.min()
        assert first.max() <= desired.high


def test_a_lognormal_has_the_mean_that_it_names() -> None:
    drawn = LogNormal(200, 0.8).sample(200_000, np.random.default_rng(0))
    assert drawn.mean() == pytest.approx(200, rel=0.02)
    assert np.log(drawn).std() == pytest.approx(0.8, rel=0.02)


def test_quantiles_come_back() -> None:
    drawn = Quantiles((0, 50, 90, 100), (10, 100, 500, 1_000)).sample(100_000, np.random.default_rng(0))
    assert np.quantile(drawn, (0.5, 0.9)) == pytest.approx((100, 500), rel=0.03)
    assert (drawn.min(), drawn.max()) == (10, 1_000)


BAD = (
    "quantiles:0=1 quantiles:0=5,100=4 quantiles:0=5,90=9 quantiles:1=5,100=9 quantiles:0=0,100=4 quantiles:0:5,100:9 "
)
BAD += "abc 0 -4 1.5 uniform:9 uniform:9:3 uniform:0:3 lognormal:0:1 lognormal:9:-1 lognormal:nan:1"


@pytest.mark.parametrize("text", ["", *BAD.split()])
def test_a_bad_length_is_refused_with_what_is_allowed(text: str) -> None:
    with pytest.raises(ValueError, match="allowed: "):
        parse_lengths(text)


@given(rate=st.floats(0.1, 1_000), count=st.integers(1, 200), seed=st.integers(0, 1_000))
def test_arrivals_are_in_order(rate: float, count: int, seed: int) -> None:
    times = poisson_arrivals(rate, count, np.random.default_rng(seed))
    assert len(times) == count
    assert times[0] >= 0
    assert (np.diff(times) >= 0).all()


@given(rate=st.floats(0.1, 500), duration_s=st.floats(0.01, 20), seed=st.integers(0, 1_000))
def test_arrivals_within_a_duration_stay_in_it(rate: float, duration_s: float, seed: int) -> None:
    times = arrivals_within(rate, duration_s, np.random.default_rng(seed))
    assert len(times) >= 1
    assert (times < duration_s).all()
    assert (np.diff(times) >= 0).all()


def test_the_rate_means_what_it_says_and_the_gaps_are_poissons() -> None:
    gaps = np.diff(poisson_arrivals(20, 100_000, np.random.default_rng(1)))
    assert gaps.mean() == pytest.approx(1 / 20, rel=0.03)
    assert (gaps.std() / gaps.mean()) ** 2 == pytest.approx(1, rel=0.06)
