"""The surrogate: it goes to the cheap end of what meets its SLO, stays within the ranges, and says when it knows too
little."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from planning.tune.surrogate import FloatArray, Observations, propose


def seen_at(places: FloatArray) -> Observations:
    """Two settings: the first costs hours and meets the SLO from 0.5 on, the second only costs."""
    ln_hours = places[:, 0] + 0.5 * places[:, 1]
    return Observations(places, ln_hours, 8 * (0.5 - places[:, :1]))


def rounds(count: int, seed: int) -> FloatArray:
    """The places that are known after so many proposals, each of which was looked at."""
    rng = np.random.default_rng(seed)
    places = rng.random((6, 2))
    for number in range(count):
        places = np.vstack([places, propose(seen_at(places), number, rng)])
    return places


@pytest.mark.parametrize("seed", range(4))
def test_it_closes_in_on_the_cheapest_that_keeps_the_promise(seed: int) -> None:
    proposed = rounds(12, seed)[6:]
    assert np.abs(proposed - (0.5, 0.0)).max(axis=1).min() < 0.06


@pytest.mark.whole
@given(st.integers(0, 2**32 - 1), st.integers(0, 20))
def test_proposals_lie_within_the_ranges_and_are_new(seed: int, number: int) -> None:
    rng = np.random.default_rng(seed)
    places = rng.random((9, 2))
    found = propose(seen_at(places), number, rng)
    assert found.shape == (2,)
    assert (found >= 0).all()
    assert (found <= 1).all()
    assert np.abs(places - found).max(axis=1).min() > 0


def test_no_surface_through_too_few_or_through_a_line() -> None:
    rng = np.random.default_rng(0)
    assert not seen_at(rng.random((4, 2))).enough
    assert seen_at(rng.random((5, 2))).enough
    line = np.column_stack([np.linspace(0, 1, 9), np.linspace(0, 1, 9)])
    assert not seen_at(line).enough
