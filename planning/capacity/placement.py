"""Solves the placement problem, and says how far the answer may be from the optimum."""

import math
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from planning.capacity.problem import PriceKind, Problem
from planning.capacity.program import Counts, build, counts_of, shares_of
from planning.capacity.routes import Route
from planning.capacity.solver import Solved, solve

GAP = 0.05
"""HiGHS finds placements within 1 to 2 % of the best that are known in seconds, and then proves little for minutes."""


class Outcome(StrEnum):
    """How the search ended: within the gap, at the time limit with an answer, or without one."""

    PROVED = "proved"
    TIME_LIMIT = "time_limit"
    INFEASIBLE = "infeasible"
    NOTHING_FOUND = "nothing_found"


@dataclass(frozen=True, slots=True)
class CapacityPlan:
    """Replicas by (site, kind, hour) and shares of each lane's demand by (route, hour).

    `cost_usd` and `bound_usd` are of the period: no placement is cheaper than the bound.
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


def place(problem: Problem, *, gap: float = GAP, limit_s: float = 60.0) -> CapacityPlan:
    """The cheapest placement to within `gap`, or the best that `limit_s` seconds of wall time find."""
    began_s = time.monotonic()
    program = build(problem, apart=True)
    found = Solved(None, math.inf, math.inf, True) if program.unserved else solve(program, gap=gap, limit_s=limit_s)
    if found.values is not None and not _keeps_quotas(problem, counts_of(program, found.values)):
        program = build(problem)
        found = solve(program, gap=gap, limit_s=began_s + limit_s - time.monotonic())
    values = found.values or ()
    return CapacityPlan(
        _outcome(found),
        {
            (site, kind, each): count
            for (site, kind, hour), count in (counts_of(program, values) if values else {}).items()
            for each in (range(problem.hours) if hour < 0 else (hour,))
        },
        shares_of(problem, program, values) if values else {},
        found.cost,
        found.bound,
        tuple(program.unserved),
        tuple(program.unprotected),
        time.monotonic() - began_s,
    )


def _keeps_quotas(problem: Problem, counts: Counts) -> bool:
    """Where each model had the quotas for itself."""
    used: Counter[tuple[int, int]] = Counter()
    for (number, kind, hour), count in counts.items():
        site = problem.sites[number]
        for index, quota in enumerate(problem.quotas):
            if quota.covers(site, kind):
                for each in range(problem.hours) if hour < 0 else (hour,):
                    used[index, each] += count * site.gpus
    return all(gpus <= problem.quotas[index].gpus for (index, _), gpus in used.items())


def _outcome(found: Solved) -> Outcome:
    if found.values is None:
        return Outcome.INFEASIBLE if found.proved else Outcome.NOTHING_FOUND
    return Outcome.PROVED if found.proved else Outcome.TIME_LIMIT
