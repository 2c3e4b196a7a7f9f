"""Time limits hold at any size, and there is a placement with a gap."""

import time
from dataclasses import replace

import pytest

from benchmarks.capacity import drawn_problem
from planning.capacity.placement import CapacityPlan, Outcome, place
from planning.capacity.problem import Problem


def _timed(problem: Problem, limit_s: float) -> tuple[CapacityPlan, float]:
    """The placement, and the processor's time it took."""
    began_s = time.process_time()
    return place(problem, limit_s=limit_s, clock=time.process_time), time.process_time() - began_s


@pytest.mark.whole
def test_a_limit_holds_and_leaves_a_placement_with_its_gap() -> None:
    """What a problem takes without any time to search is what to build it takes: no figure here is of this machine."""
    problem = drawn_problem(4, 6, 6, 24, seed=0)
    first, least_s = _timed(problem, 0.0)
    found, took_s = _timed(problem, 2 * least_s)
    assert took_s <= 2.4 * least_s
    assert first.outcome is found.outcome is Outcome.TIME_LIMIT
    assert found.gap < first.gap < 1.0
    assert 0.0 < first.bound_usd <= found.bound_usd <= found.cost_usd < first.cost_usd


@pytest.mark.whole
def test_a_clock_that_stands_still_until_the_end_is_obeyed() -> None:
    problem = replace(drawn_problem(1, 2, 2, 4, seed=0), quotas=())
    times = iter([0.0] * 3 + [1e9] * 100_000)
    found = place(problem, limit_s=1.0, clock=lambda: next(times))
    assert found.cost_usd >= found.bound_usd > 0
