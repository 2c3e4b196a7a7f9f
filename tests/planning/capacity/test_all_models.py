"""Several models at once: a time limit leaves what was found, with its gap."""

import pytest

from benchmarks.capacity import drawn_problem
from planning.capacity.placement import Outcome, place


@pytest.mark.whole
def test_a_time_limit_leaves_a_placement_with_its_gap() -> None:
    problem = drawn_problem(1, 4, 4, 6, seed=0)
    found = place(problem, gap=0.0, limit_s=5.0)
    assert found.outcome is Outcome.TIME_LIMIT
    assert 0.0 < found.bound_usd < found.cost_usd
    assert 0.0 < found.gap < 1.0


def test_no_time_at_all_is_no_proof() -> None:
    found = place(drawn_problem(2, 4, 4, 12, seed=0), limit_s=0.0)
    assert found.outcome in (Outcome.NOTHING_FOUND, Outcome.TIME_LIMIT)
