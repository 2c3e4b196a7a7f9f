"""Parts of traffic: at even distances, around the peak, within the whole, standing for all of it."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from planning.tune.case import LoadCurve, history_of_trace, parts_of
from planning.workload.trace import Trace


@given(st.floats(3_600, 1e6), st.floats(0, 1))
def test_parts_lie_in_the_whole_and_stand_for_it(span_s: float, peak: float) -> None:
    replicas = np.ones(max(1, int(span_s / 60)))
    at = min(len(replicas) - 1, int(peak * len(replicas)))
    replicas[at] = 5.0
    parts = parts_of(LoadCurve(replicas, 60.0), span_s)
    assert sum(part.weight * (part.to_s - part.from_s) for part in parts) == pytest.approx(span_s)
    assert all(0 <= part.from_s - part.lead_s <= part.from_s < part.to_s <= span_s * (1 + 1e-9) for part in parts)
    assert all(one.to_s <= other.from_s - other.lead_s + 1e-6 for one, other in pairwise(parts))
    assert any(part.from_s <= (at + 0.5) * 60 <= part.to_s for part in parts) or len(parts) == 1


def test_a_trace_is_weighed_as_the_scheduler_weighs() -> None:
    trace = Trace(np.array([0.0, 700.0, 1_300.0]), np.array([100, 200, 1]), np.array([10, 20, 1]))
    assert history_of_trace(trace, 4.0, 345_600.0).rates == ((100 + 40) / 600, (200 + 80) / 600)
