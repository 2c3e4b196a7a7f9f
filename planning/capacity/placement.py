"""Solves the placement problem, and says how far the answer may be from the optimum. `all_models.py` does the work."""

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from planning.capacity.all_models import FoundPlacement, PlacementSearch
from planning.capacity.problem import PriceKind, Problem
from planning.capacity.routes import Route
from planning.capacity.solver import Clock, Deadline

_ROUND = 1e-9


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


def place(problem: Problem, *, gap: float = 0.02, limit_s: float = 60.0, clock: Clock = time.monotonic) -> CapacityPlan:
    """The cheapest placement to within `gap`, or the best that `limit_s` seconds of the clock find."""
    began_s = clock()
    search = PlacementSearch(problem, gap, Deadline.after(limit_s, clock))
    found = FoundPlacement(proved=True) if search.unserved else search.search()
    return CapacityPlan(
        _outcome(found, gap),
        {
            (site, kind, each): count
            for (site, kind, hour), count in found.replicas.items()
            for each in (range(problem.hours) if hour < 0 else (hour,))
        },
        found.shares,
        found.cost_usd,
        min(found.bound_usd, found.cost_usd),
        search.unserved,
        search.unprotected,
        clock() - began_s,
    )


def _outcome(found: FoundPlacement, gap: float) -> Outcome:
    if found.cost_usd == math.inf:
        return Outcome.INFEASIBLE if found.proved else Outcome.NOTHING_FOUND
    return Outcome.PROVED if found.gap <= gap + _ROUND else Outcome.TIME_LIMIT
