"""Small changes of a schedule: apart from each other, and no dearer in misses than allowed."""

from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from planning.gauntlet.trimming import AROUND, affordable, apart, changed, cuts, raises

priced = st.lists(st.tuples(st.integers(-12, 12).filter(bool), st.integers(-10, 10)), max_size=12)


@given(priced, st.integers(0, 30))
def test_the_charges_together_are_allowed_and_what_is_free_is_taken(changes: list[tuple[int, int]], allowed: int) -> None:
    costs, charges = [cost for cost, _ in changes], [charge for _, charge in changes]
    chosen = affordable(costs, charges, allowed)
    assert sum(charges[index] for index in chosen) <= allowed
    if sum(charge for cost, charge in changes if cost < 0 and charge > 0) <= allowed:
        assert set(chosen) >= {index for index, (cost, charge) in enumerate(changes) if cost < 0 and charge <= 0}


def test_the_best_by_misses_are_taken_first() -> None:
    assert affordable([-6, -6, -6], [3, 1, 9], 4) == [1, 0]
    assert affordable([-6, 3], [5, -5], 0) == [0, 1]


@given(st.lists(st.integers(0, 5), min_size=10, max_size=80), st.sampled_from([1, 3, 6]), st.integers(0, 5))
def test_cuts_lower_and_raises_raise_within_the_bounds(levels: list[int], width: int, seed: int) -> None:
    needed = np.array(levels)
    rng = np.random.default_rng(seed)
    found = apart([*raises(needed, rng.integers(0, 9, len(levels)).astype(np.float64), 5, width), *cuts(needed, 1, width, rng)])
    new = changed(needed, found)
    assert new.min() >= min(1, needed.min())
    assert new.max() <= 5
    taken = sorted((change.begin, change.end) for change in found)
    assert all(end + AROUND <= begin for (_, end), (begin, _) in pairwise(taken))
    assert int((new - needed).sum()) == sum(change.replica_bins for change in found)
