"""Spans against sets of single nanoseconds."""

from itertools import pairwise

import hypothesis.strategies as st
from hypothesis import given

from deployments.accounting.spans import Span, common, measure, minus, union

SPANS = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)), max_size=8)


def points(spans: list[Span]) -> set[int]:
    return {at for begin, end in spans for at in range(begin, end)}


def is_normal(spans: list[Span]) -> bool:
    return all(begin < end for begin, end in spans) and all(a[1] < b[0] for a, b in pairwise(spans))


@given(SPANS, SPANS)
def test_spans_are_sets_of_moments(first: list[Span], second: list[Span]) -> None:
    a, b = union(first), union(second)
    assert points(a) == points(first)
    assert is_normal(a)
    assert points(common(a, b)) == points(a) & points(b)
    assert points(minus(a, b)) == points(a) - points(b)
    assert measure(a) == len(points(first))
    assert measure(minus(a, b)) + measure(common(a, b)) == measure(a)
