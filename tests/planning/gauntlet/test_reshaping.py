"""Levels by window: the dynamic programme against trying all choices, and its bounds."""

import itertools

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from planning.gauntlet.reshaping import Shape, reshaped
from planning.gauntlet.schedule import Needed

WIDTH = 3


def shape_of(levels: list[int], lower: list[int], upper: list[int], start: float = 4.0) -> Shape:
    window = np.repeat(np.arange(len(levels)), WIDTH)
    needed = np.repeat(np.array(levels), WIDTH)
    return Shape(needed, window, np.array(lower, dtype=np.float64), -np.array(upper, dtype=np.float64), start, 1, 6)


def cost(shape: Shape, needed: Needed) -> float:
    return float(needed.sum() + shape.start * np.maximum(0, np.diff(needed)).sum())


cases = st.integers(2, 5).flatmap(
    lambda count: st.tuples(
        st.lists(st.integers(1, 6), min_size=count, max_size=count),
        st.lists(st.integers(0, 30), min_size=count, max_size=count),
        st.lists(st.integers(0, 10), min_size=count, max_size=count),
    )
)


@settings(max_examples=60)
@given(cases, st.integers(0, 40))
def test_no_choice_with_as_few_misses_is_cheaper_than_the_best_by_more_than_the_price_says(
    case: tuple[list[int], list[int], list[int]], allowed: int
) -> None:
    shape = shape_of(*case)
    needed, foreseen = reshaped(shape, allowed)
    assert foreseen <= allowed
    assert needed.min() >= 1
    assert needed.max() <= 6
    assert np.abs(needed - shape.needed).max() <= 1
    effects = np.stack([shape.lower, np.zeros(len(shape.lower)), shape.upper])
    for steps in itertools.product((-1, 0, 1), repeat=len(shape.lower)):
        other = shape.needed + np.array(steps)[shape.window]
        misses = float(effects[np.array(steps) + 1, np.arange(len(steps))].sum())
        if other.min() >= 1 and other.max() <= 6 and misses <= foreseen:
            assert cost(shape, other) >= cost(shape, needed) - 1e-6  # the optimum at a price is the cheapest of those with no more misses


def test_what_costs_no_miss_goes() -> None:
    needed, foreseen = reshaped(shape_of([3, 3, 3, 3], [0, 0, 0, 0], [0, 0, 0, 0]), 0)
    assert (needed == 2).all()
    assert foreseen == 0


def test_a_dip_that_is_cheaper_to_keep_is_kept() -> None:
    needed, _ = reshaped(shape_of([3, 3, 3], [50, 0, 50], [0, 0, 0], start=10.0), 0)
    assert (needed == 3).all()
    needed, _ = reshaped(shape_of([3, 3, 3], [50, 0, 50], [0, 0, 0], start=1.0), 0)
    assert needed.tolist() == [3, 3, 3, 2, 2, 2, 3, 3, 3]
