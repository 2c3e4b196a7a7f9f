"""Solves the placement problem, and says how far the answer may be from the optimum.

A first placement, hour by hour, is the start of the solver's search on the whole program. Where that program is too
large to search, each model is searched by itself for a bound, and the first placement is the answer.
"""

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from planning.capacity.first import First, first_placement
from planning.capacity.parts import ModelPart, largest_first
from planning.capacity.problem import PriceKind, Problem
from planning.capacity.program import Counts, Program, Route, Shares, build, counts_of, shares_of
from planning.capacity.solver import solve

_SEARCHED_COLUMNS = 100_000
"""A program of more columns is not searched as a whole."""
_FIRST_SHARE = 0.6
"""Of the time limit, for the first placement."""


class Outcome(StrEnum):
    """How the search ended: within the gap, at the time limit with an answer, or without one."""

    PROVED = "proved"
    TIME_LIMIT = "time_limit"
    INFEASIBLE = "infeasible"
    NOTHING_FOUND = "nothing_found"


@dataclass(frozen=True, slots=True)
class CapacityPlan:
    """Replicas by (site, kind, hour) and shares of each lane's demand by (route, hour).

    `cost_usd` and `bound_usd` are of the period (hours by their weights): no placement is cheaper than the bound.
    `unserved`: (lane's title, origin) that no site may serve. `unprotected`: (lane's title, origin, region) that no
    other region may serve while that one is lost.
    """

    outcome: Outcome
    replicas: Mapping[tuple[int, PriceKind, int], int]
    shares: Mapping[tuple[Route, int], float]
    cost_usd: float
    bound_usd: float
    unserved: tuple[tuple[str, str], ...] = ()
    unprotected: tuple[tuple[str, str, str], ...] = ()
    seconds: float = 0.0

    @property
    def gap(self) -> float:
        """How much cheaper the optimum may be, as a share of the cost; 1 where nothing is known."""
        if not math.isfinite(self.cost_usd):
            return 1.0
        return max(0.0, (self.cost_usd - self.bound_usd) / self.cost_usd) if self.cost_usd else 0.0

    def count(self, site: int, hour: int, kind: PriceKind | None = None) -> int:
        """Replicas of a site in an hour."""
        return sum(
            number
            for (where, paid, when), number in self.replicas.items()
            if where == site and when == hour and kind in (None, paid)
        )


def place(problem: Problem, *, gap: float = 0.02, limit_s: float = 60.0) -> CapacityPlan:
    """The cheapest placement to within `gap`, or the best that `limit_s` seconds find."""
    began = time.monotonic()
    program = build(problem)

    def answer(outcome: Outcome, counts: Counts, shares: Shares, cost: float, bound: float) -> CapacityPlan:
        return CapacityPlan(
            outcome,
            _by_hour(problem, counts),
            shares,
            cost,
            min(bound, cost),
            tuple(program.unserved),
            tuple(program.unprotected),
            time.monotonic() - began,
        )

    if program.unserved:
        return answer(Outcome.INFEASIBLE, {}, {}, math.inf, math.inf)
    first = first_placement(problem, program, gap, limit_s * _FIRST_SHARE)
    left_s = limit_s - (time.monotonic() - began)
    if first is not None and first.gap <= gap:
        return answer(Outcome.PROVED, first.replicas, first.shares, first.cost_usd, first.bound_usd)
    if len(program.cost) > _SEARCHED_COLUMNS:
        if first is None:
            return answer(Outcome.NOTHING_FOUND, {}, {}, math.inf, 0.0)
        bound = max(first.bound_usd, _bound(problem, gap, left_s))
        outcome = Outcome.PROVED if first.cost_usd - bound <= gap * first.cost_usd else Outcome.TIME_LIMIT
        return answer(outcome, first.replicas, first.shares, first.cost_usd, bound)
    solved = solve(program, gap=gap, limit_s=left_s, start=_start(program, first))
    if solved.values is None:
        outcome = Outcome.INFEASIBLE if solved.proved else Outcome.NOTHING_FOUND
        return answer(outcome, {}, {}, math.inf, solved.bound)
    outcome = Outcome.PROVED if solved.proved else Outcome.TIME_LIMIT
    found = counts_of(program, solved.values), shares_of(program, solved.values)
    return answer(outcome, *found, solved.cost, solved.bound)


def _start(program: Program, first: First | None) -> dict[int, float] | None:
    """All counts of the first placement; the solver finds the shares."""
    if first is None:
        return None
    return {column: float(first.replicas.get(key, 0)) for key, column in program.counts.items()}


def _bound(problem: Problem, gap: float, limit_s: float) -> float:
    """The models' own bounds together: each by itself, with the whole quotas, can only be cheaper."""
    until, total = time.monotonic() + limit_s, 0.0
    models = largest_first(problem)
    for done, model in enumerate(models):
        share_s = (until - time.monotonic()) / (len(models) - done)
        total += solve(build(ModelPart.of(problem, model).problem), gap=gap, limit_s=share_s).bound
    return total


def _by_hour(problem: Problem, counts: Counts) -> dict[tuple[int, PriceKind, int], int]:
    return {
        (site, kind, each): count
        for (site, kind, hour), count in counts.items()
        for each in (range(problem.hours) if hour == -1 else (hour,))
    }
