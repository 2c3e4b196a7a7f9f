"""Solves the placement problem, and says how far the answer may be from the optimum.

A first placement, hour by hour, is where each model's own search begins: models share nothing but quotas, and a model's
program is much easier to search than all of them together. The bound is the best of three: the relaxed program's, that
of whole replicas by model and hour (`bound.py`), and the models' own together. A first placement that would break a
quota with what the searches found is the answer as it is.
"""

import math
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

from planning.capacity.bound import lower_bound
from planning.capacity.first import First, first_placement
from planning.capacity.parts import ModelPart, largest_first
from planning.capacity.problem import PriceKind, Problem, Quota
from planning.capacity.program import Counts, Program, Route, Shares, build, counts_of, shares_of
from planning.capacity.solver import solve

_WHOLE_COLUMNS = 100_000
"""A program of more columns is relaxed by model, not as a whole."""
_FIRST_SHARE, _BOUND_SHARE = 0.3, 0.3
"""Of the time limit, for the first placement, and of what is left then, for the bound by model and hour."""
_OWN = 0.5
"""Of the gap that is asked for, where a model's own search stops."""
_ROUND = 1e-9
_FINE = 0.1
"""Of the gap that is asked for, what the parts of the bound may leave."""


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

    def left_s() -> float:
        return limit_s - (time.monotonic() - began)

    first = first_placement(problem, program, gap, limit_s * _FIRST_SHARE)
    if first is None:
        solved = solve(program, gap=gap, limit_s=left_s())
        if solved.values is None:
            outcome = Outcome.INFEASIBLE if solved.proved else Outcome.NOTHING_FOUND
            return answer(outcome, {}, {}, math.inf, solved.bound)
        found = counts_of(program, solved.values), shares_of(program, solved.values)
        first = First(*found, solved.cost, solved.bound)
    if first.gap > gap and len(program.cost) <= _WHOLE_COLUMNS:
        bound = lower_bound(problem, program, _FINE * gap, _BOUND_SHARE * left_s())
        first = replace(first, bound_usd=max(first.bound_usd, bound))
    if first.gap > gap:
        first = _searched(problem, first, gap, left_s())
    outcome = Outcome.PROVED if first.gap <= gap + _ROUND else Outcome.TIME_LIMIT
    return answer(outcome, first.replicas, first.shares, first.cost_usd, first.bound_usd)


def _searched(problem: Problem, first: First, gap: float, limit_s: float) -> First:
    """Each model by itself, with the whole quotas, from the first placement on."""
    until, bound, cost = time.monotonic() + limit_s, 0.0, 0.0
    replicas, shares = dict(first.replicas), dict(first.shares)
    models = largest_first(problem)
    for done, model in enumerate(models):
        part = ModelPart.of(problem, model)
        program = build(part.problem)
        start = {
            column: float(first.replicas.get((part.sites[site], kind, hour), 0))
            for (site, kind, hour), column in program.counts.items()
        }
        own_s = max(0.0, until - time.monotonic()) / (len(models) - done)
        solved = solve(program, gap=_OWN * gap, limit_s=own_s, start=start)
        bound += solved.bound
        now = _cost(program, part, first)
        if solved.values is None or solved.cost >= now:
            cost += now
            continue
        cost += solved.cost
        replicas = {key: count for key, count in replicas.items() if key[0] not in part.sites}
        shares = {key: share for key, share in shares.items() if key[0].site not in part.sites}
        for (site, kind, hour), count in counts_of(program, solved.values).items():
            replicas[part.sites[site], kind, hour] = count
        for (route, hour), share in shares_of(program, solved.values).items():
            shares[part.route(route), hour] = share
    bound = max(bound, first.bound_usd)
    if cost >= first.cost_usd or not _within_quotas(problem, replicas):
        return replace(first, bound_usd=bound)
    return First(replicas, shares, cost, bound)


def _cost(program: Program, part: ModelPart, first: First) -> float:
    """What the first placement pays for a model."""
    counts = sum(
        program.cost[column] * first.replicas.get((part.sites[site], kind, hour), 0)
        for (site, kind, hour), column in program.counts.items()
    )
    return counts + sum(
        program.cost[column] / unit * first.shares.get((part.route(route), hour), 0.0)
        for (route, hour), (column, unit) in program.flows.items()
    )


def _within_quotas(problem: Problem, replicas: Counts) -> bool:
    used: Counter[tuple[Quota, int]] = Counter()
    for (site, kind, hour), count in _by_hour(problem, replicas).items():
        for quota in problem.quotas:
            if quota.covers(problem.sites[site], kind):
                used[quota, hour] += count * problem.sites[site].gpus
    return all(gpus <= quota.free(hour) for (quota, hour), gpus in used.items())


def _by_hour(problem: Problem, counts: Counts) -> dict[tuple[int, PriceKind, int], int]:
    return {
        (site, kind, each): count
        for (site, kind, hour), count in counts.items()
        for each in (range(problem.hours) if hour == -1 else (hour,))
    }
