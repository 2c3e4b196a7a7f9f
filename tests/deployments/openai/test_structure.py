"""What is counted in a body before it is parsed: exact, whatever its strings hold, and wherever the slices end."""

import json
from typing import Any
from unittest import mock

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from deployments.openai import structure
from deployments.openai.structure import structure_of

TEXTS = st.text(st.sampled_from('ab"\\[]{},:é\n'), max_size=90)
ANYTHING = st.recursive(
    st.none() | st.integers() | TEXTS,
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=40,
)


def values_in(value: Any) -> int:
    """Commas and opening brackets that a value's JSON has."""
    if isinstance(value, dict):
        return 1 + max(0, len(value) - 1) + sum(map(values_in, value.values()))
    if isinstance(value, list):
        return 1 + max(0, len(value) - 1) + sum(map(values_in, value))
    return 0


def depth_of(value: Any) -> int:
    """Containers in one another."""
    if isinstance(value, dict):
        return 1 + max(map(depth_of, value.values()), default=0)
    return 1 + max(map(depth_of, value), default=0) if isinstance(value, list) else 0


@pytest.mark.whole
@given(ANYTHING, st.booleans(), st.integers(0, 130), st.sampled_from([64, 128, 1 << 18]))
@example(["\\" * 63, '"', [","]], True, 0, 64)
@example([["\\" * 200 + '"'], "[" * 100], True, 63, 64)
def test_it_counts_what_is_outside_strings(value: Any, ascii_only: bool, shift: int, slice_bytes: int) -> None:
    body = b" " * shift + json.dumps(value, ensure_ascii=ascii_only).encode()
    depth = depth_of(value)
    with mock.patch.object(structure, "_SLICE_BYTES", slice_bytes):
        found = structure_of(body, 10**9, 10**9)
        assert found.values == values_in(value)
        assert depth <= found.depth <= depth + 32
        assert structure_of(body, 10**9, depth).depth <= depth
        assert depth == 0 or structure_of(body, 10**9, depth - 1).depth >= depth


@given(st.binary(max_size=300))
def test_any_bytes_are_counted(body: bytes) -> None:
    found = structure_of(body, 10**9, 10)
    assert 0 <= found.values <= len(body)
    assert 0 <= found.depth <= len(body)


@pytest.mark.parametrize("unit", [b"1,", b"[],", b"[", b'{"a":', b'"",'])
def test_it_ends_soon_after_the_bound(unit: bytes) -> None:
    found = structure_of(b"[" + unit * 1_000_000, 1_000, 100)
    assert 1_000 < found.values <= structure._SLICE_BYTES
