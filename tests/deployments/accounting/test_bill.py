"""Amounts that add up, and the rows of a bill."""

from decimal import Decimal
from fractions import Fraction

import hypothesis.strategies as st
import pytest
from hypothesis import given

from deployments.accounting.bill import (
    HOUR_NS,
    Amounts,
    Bill,
    BillLine,
    Dimension,
    LineKey,
    TimeShare,
    divided,
    hour_name,
    hour_named,
    rounded,
    rows_by,
    total_of,
)
from deployments.wire import from_plain, to_plain

KEYS = st.builds(
    LineKey,
    st.integers(0, 400_000).map(lambda hour: hour * HOUR_NS),
    st.sampled_from(["here", "there"]),
    st.sampled_from(["a", "b"]),
    st.sampled_from(["default", "cheap"]),
    st.sampled_from(TimeShare),
    st.sampled_from(["", "x", "y"]),
    st.sampled_from(["", "chat"]),
    st.fractions(0, 100, max_denominator=1_000),
    st.sampled_from(["", "here", "far"]),
)
NUMBERS = st.integers(0, 10 * HOUR_NS)
LINES = st.lists(
    st.builds(BillLine, KEYS, st.builds(Amounts, NUMBERS, NUMBERS, NUMBERS, NUMBERS, NUMBERS)), max_size=12
)


@pytest.mark.whole
@given(st.lists(st.fractions(0, 1_000), max_size=20), st.integers(0, 6))
def test_rounded_amounts_add_up_to_the_rounded_sum(amounts: list[Fraction], digits: int) -> None:
    found = rounded(amounts, digits)
    unit = Fraction(1, 10**digits)
    assert sum(found, Decimal(0)) == round(sum(amounts, Fraction(0)) / unit) * Decimal(1).scaleb(-digits)
    assert all(abs(Fraction(one) - amount) <= unit for one, amount in zip(found, amounts, strict=True))


@given(st.integers(0, 1 << 60), st.dictionaries(st.integers(0, 20), st.integers(0, 1 << 50), min_size=1))
def test_parts_add_up_to_the_whole(whole: int, weights: dict[int, int]) -> None:
    if not any(weights.values()):
        return
    parts = divided(whole, weights)
    total = sum(weights.values())
    assert sum(parts.values()) == whole
    assert all(abs(parts[key] - Fraction(whole * weight, total)) < 1 for key, weight in weights.items())
    assert all(parts[key] == 0 for key, weight in weights.items() if not weight), "who did nothing pays nothing"


@pytest.mark.whole
@given(LINES, st.lists(st.sampled_from(Dimension), unique=True))
def test_rows_add_up_to_the_lines_whatever_they_are_by(lines: list[BillLine], by: list[Dimension]) -> None:
    rows = rows_by(lines, by)
    total = total_of(rows)
    assert total.usd == sum((line.usd for line in lines), Fraction(0))
    assert total.shown == sum((row.shown for row in rows), Decimal(0)) == rounded([total.usd])[0]
    assert total.amounts.ns == sum(line.amounts.ns for line in lines)
    assert len({(row.labels, row.share) for row in rows}) == len(rows)


@pytest.mark.whole
@given(LINES)
def test_a_bill_is_read_back_as_it_was(lines: list[BillLine]) -> None:
    bill = Bill(tuple(lines), {"a@default": "the step model"}, 3)
    assert from_plain(to_plain(bill), Bill) == bill


def test_hours_have_names() -> None:
    assert hour_named(hour_name(493_000 * HOUR_NS)) == 493_000 * HOUR_NS
    assert hour_name(0) == "1970-01-01T00"
    with pytest.raises(ValueError, match="totals"):
        hour_named("totals")
