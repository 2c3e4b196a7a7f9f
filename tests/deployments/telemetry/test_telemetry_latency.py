"""The window gives the quantiles of what is recent, and forgets the rest."""

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

from deployments.telemetry.metrics import ValueWindow


@given(st.lists(st.tuples(st.floats(0, 5), st.floats(0, 100)), max_size=80), st.integers(1, 20))
def test_it_is_what_the_list_says(gaps: list[tuple[float, float]], maximum: int) -> None:
    window, now, kept = ValueWindow(10.0, maximum), 0.0, []
    for gap, value in gaps:
        now += gap
        window.add(value, now)
        kept.append((now, value))
    recent = [value for at, value in kept[-maximum:] if at >= now - 10.0]
    count, quantiles = window.quantiles((0.5, 0.99), now)
    assert count == len(recent)
    assert quantiles == (pytest.approx(np.quantile(recent, (0.5, 0.99)).tolist()) if recent else [])
