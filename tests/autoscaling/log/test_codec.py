import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoscaling.log.codec import NOTHING, difference, patched

leaves = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=4)
trees = st.recursive(leaves, lambda inner: st.lists(inner, max_size=5), max_leaves=30)


@given(trees, trees)
def test_a_difference_makes_the_new_of_the_old(old: object, new: object) -> None:
    assert patched(old, json.loads(json.dumps(difference(old, new)))) == new


@given(trees)
def test_equal_trees_differ_in_nothing(tree: object) -> None:
    assert difference(tree, tree) == NOTHING


def test_only_what_changed_is_told() -> None:
    assert difference([1, [2, 3], "a"], [1, [2, 4], "a"]) == {"1": {"1": 4}}
    assert difference([1, [2, 3]], [1, [2, 3, 4]]) == {"1": [2, 3, 4]}


@pytest.mark.parametrize(("old", "change"), [(1, {"0": 1}), ([1], {"1": 1}), ([1], {"x": 1}), (None, {"0": 2})])
def test_a_change_that_does_not_fit_is_refused(old: object, change: object) -> None:
    with pytest.raises(ValueError, match=r"change|invalid literal"):
        patched(old, change)
