"""A model's search by itself: it ends, at the optimum."""

import time

import pytest
from hypothesis import given, settings

from planning.capacity.parts import ModelPart
from planning.capacity.placement import Outcome, place
from planning.capacity.problem import LaneDemand, Limits, PriceKind, Problem, Site
from planning.capacity.program import build
from planning.capacity.search import ModelSearch
from planning.capacity.solver import Deadline, relax
from tests.planning.capacity.brute_force import HOURLY, small_problems

_STEPS = 2_000
"""Far more than any of these problems takes; a search that cannot end runs for ever."""


def _searched(problem: Problem) -> tuple[float, float, float]:
    """The cost, the first bound and the last one of a search that goes on until nothing is left."""
    part, program = ModelPart.of(problem, "m"), build(problem)
    search, until = ModelSearch(problem, part, program, {}, 0.0), Deadline.after(60.0, time.process_time)
    search.begin(relax(program, limit_s=10.0), {}, until)
    search.step({}, until)
    first_usd = search.bound_usd
    assert any(not search.step({}, until) for _ in range(_STEPS))
    assert search.best is not None
    return search.best.cost_usd, first_usd, search.bound_usd


@pytest.mark.whole
@given(small_problems())
@settings(max_examples=20, deadline=None)
def test_a_search_run_to_its_end_finds_the_optimum(problem: Problem) -> None:
    found = place(problem, gap=0.0)
    if found.outcome is Outcome.INFEASIBLE:
        return
    cost_usd, first_usd, bound_usd = _searched(problem)
    assert first_usd <= found.cost_usd + 1e-6
    assert cost_usd == pytest.approx(found.cost_usd)
    assert bound_usd == pytest.approx(found.cost_usd, abs=1e-4)


def test_a_search_ends_where_bound_and_cost_differ_by_rounding() -> None:
    """The lowest bound stays 7e-15 USD below the best placement here."""
    lanes = tuple(
        LaneDemand(name, "m", demand, ttft_s=2.0, slices=1)
        for name, demand in (
            ("short", {"a": (2.5, 2.5), "b": (1.0, 1.0)}),
            ("long", {"a": (4.0, 1.0), "b": (1.0, 1.0)}),
        )
    )
    gpus: dict[str, dict[str, float]] = {"small": {"short": 1.0}, "large": {"short": 1.0, "long": 2.0}}
    prices = {
        ("small", "a"): (3.5, 0.7),
        ("large", "a"): (3.5, 0.5),
        ("small", "b"): (1.0, 0.7),
        ("large", "b"): (2.0, 0.7),
    }
    sites = tuple(
        Site(
            gpu,
            "m",
            region,
            gpu,
            1,
            gpus[gpu],
            {HOURLY: usd, PriceKind.RESERVED: share * usd},
            {"short": 0.1, "long": 0.4},
        )
        for (gpu, region), (usd, share) in prices.items()
    )
    limits = Limits(utilisation=0.8, failures=1, survive_region=True, binding=0.6)
    problem = Problem(lanes, sites, (1.0, 1.0), (), limits, {("a", "b"): 0.3, ("b", "a"): 0.3})
    assert _searched(problem)[0] == pytest.approx(33.4)


def test_whole_replicas_by_hour_raise_the_bound_of_fractions() -> None:
    lane = LaneDemand("chat", "m", {"a": (3.0, 1.0, 2.5)})
    prices = {HOURLY: 1.0, PriceKind.RESERVED: 0.9}
    problem = Problem((lane,), (Site("g", "m", "a", "gpu", 1, {"chat": 2.0}, prices),), (1.0, 1.0, 2.0))
    fractions = relax(build(problem), limit_s=10.0)[0].cost
    assert fractions < _searched(problem)[1] <= place(problem, gap=0.0).cost_usd
