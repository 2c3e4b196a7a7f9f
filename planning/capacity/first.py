"""A first placement, found quickly: it gives the solver a start, and is the answer where the solver finds none.

What is reserved ties the hours together; everything else does not. So reserved counts are taken from the relaxed
program, and each model and hour is solved by itself, with what the models before it left of the quotas. Then each
site's reserved count is chosen anew for the counts by hour that came out, and the hours are solved again.
"""

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace

from planning.capacity.parts import ModelPart, at_hour, largest_first
from planning.capacity.problem import PriceKind, Problem, Quota
from planning.capacity.program import Counts, Program, Shares, build, counts_of, shares_of
from planning.capacity.solver import relax, round_up, solve

_HOUR_GAP = 0.2
"""Of the gap that is asked for, what an hour may use."""
_HOUR_LIMIT_S = 2.0
_ROUNDS = 3
_ROUND = 1e-6


@dataclass(frozen=True, slots=True)
class First:
    """Replicas by (site, kind, hour), reserved ones with hour -1; shares by (route, hour); the cost (US dollars over
    the period) and the relaxed program's, which none can go below."""

    replicas: Counts
    shares: Shares
    cost_usd: float
    bound_usd: float

    @property
    def gap(self) -> float:
        return (self.cost_usd - self.bound_usd) / self.cost_usd if self.cost_usd else 0.0


def first_placement(problem: Problem, program: Program, gap: float, limit_s: float) -> First | None:
    """None: nothing was found in time."""
    until = time.monotonic() + limit_s
    relaxed, _ = relax(program, limit_s=limit_s / 2)
    if relaxed.values is None:
        return None
    kinds = {
        site: round(relaxed.values[column])
        for (site, kind, _), column in program.counts.items()
        if kind is PriceKind.RESERVED
    }
    best: First | None = None
    for _ in range(_ROUNDS):
        kinds = _within_quotas(problem, kinds)
        found = _solve_hours(problem, kinds, _HOUR_GAP * gap, until)
        if found is None:
            break
        found = replace(found, bound_usd=relaxed.bound)
        if best is None or found.cost_usd < best.cost_usd:
            best = found
        again = {site: _reserve(problem, site, found) for site in kinds}
        if again == kinds or best.gap <= gap:
            break
        kinds = again
    if best is None and (rounded := round_up(program, relaxed)).values is not None:
        counts, shares = counts_of(program, rounded.values), shares_of(program, rounded.values)
        return First(counts, shares, rounded.cost, relaxed.bound)
    return best


def _solve_hours(problem: Problem, reserved: Mapping[int, int], gap: float, until: float) -> First | None:
    replicas: Counts = {(site, PriceKind.RESERVED, -1): count for site, count in reserved.items() if count}
    shares: Shares = {}
    cost = sum(
        count * problem.sites[site].prices[PriceKind.RESERVED] * sum(problem.weights)
        for site, count in reserved.items()
    )
    taken = {quota: _reserved_gpus(problem, quota, reserved) for quota in problem.quotas}
    models = largest_first(problem)
    to_do = len(models) * problem.hours
    for model in models:
        part = ModelPart.of(problem, model)
        own = {site: count for site, count in reserved.items() if site in part.sites}
        for quota, hours in taken.items():  # the model's program counts them itself
            taken[quota] = [n - m for n, m in zip(hours, _reserved_gpus(problem, quota, own), strict=True)]
        for hour in range(problem.hours):
            left_s = until - time.monotonic()
            if left_s <= 0:
                return None
            to_do -= 1
            mine = _one_hour(problem, part, hour, taken)
            program = build(mine)
            program.reserve({number: reserved.get(site, 0) for number, site in enumerate(part.sites)})
            solved = solve(program, gap=gap, limit_s=min(_HOUR_LIMIT_S, left_s / (to_do + 1)))
            if solved.values is None and not solved.proved:
                solved = round_up(program, relax(program, limit_s=left_s)[0])
            if solved.values is None:
                return None
            cost += solved.cost
            counts = counts_of(program, solved.values)
            for (number, kind, _), count in counts.items():
                if kind is not PriceKind.RESERVED:
                    replicas[part.sites[number], kind, hour] = count
                for quota, hours in taken.items():
                    if quota.covers(mine.sites[number], kind):
                        hours[hour] += count * mine.sites[number].gpus
            for (route, _), share in shares_of(program, solved.values).items():
                shares[part.route(route), hour] = share
    return First(replicas, shares, cost, 0.0)


def _within_quotas(problem: Problem, reserved: Mapping[int, int]) -> dict[int, int]:
    """Fewer where rounding went over a quota: one replica at a time, of the site that has the most."""
    kept = dict(reserved)
    for quota in problem.quotas:
        free = min(quota.free(hour) for hour in range(problem.hours))
        sites = [site for site in kept if quota.covers(problem.sites[site], PriceKind.RESERVED)]
        while sites and sum(kept[site] * problem.sites[site].gpus for site in sites) > free:
            kept[max(sites, key=kept.__getitem__)] -= 1
    return kept


def _reserved_gpus(problem: Problem, quota: Quota, reserved: Mapping[int, int]) -> list[int]:
    """What reserved replicas use of a quota, by hour."""
    used = sum(
        count * problem.sites[site].gpus
        for site, count in reserved.items()
        if quota.covers(problem.sites[site], PriceKind.RESERVED)
    )
    return [used] * problem.hours


def _one_hour(problem: Problem, part: ModelPart, hour: int, taken: Mapping[Quota, list[int]]) -> Problem:
    """A model's problem in one hour; what is reserved costs nothing there, since it is paid for."""
    own = at_hour(problem, part, hour)
    return replace(
        own,
        sites=tuple(
            replace(site, prices={k: 0.0 if k is PriceKind.RESERVED else p for k, p in site.prices.items()})
            for site in own.sites
        ),
        quotas=tuple(replace(quota, gpus=quota.free(hour) - used[hour], taken=()) for quota, used in taken.items()),
    )


def _reserve(problem: Problem, site: int, found: First) -> int:
    """How many reserved replicas are worth their price, given what a site is used for: one more is, while the hours in
    which it saves one on demand cost more. Spot is not replaced: it is cheaper, and its share is limited."""
    prices, counts, limits = problem.sites[site].prices, found.replicas, problem.limits
    on_demand = prices.get(PriceKind.ON_DEMAND)
    kept = counts.get((site, PriceKind.RESERVED, -1), 0)
    if on_demand is None:
        return kept
    binds = problem.binding_hours(problem.sites[site].model) if limits.survive_region else ()
    needed = []
    for hour in range(problem.hours):
        hourly, spot = (counts.get((site, kind, hour), 0) for kind in (PriceKind.ON_DEMAND, PriceKind.SPOT))
        used = math.ceil(_load(problem, site, hour, found) / limits.utilisation - _ROUND) - spot
        needed.append(kept + hourly if hourly or hour in binds else min(kept, max(0, used)))
    whole = prices[PriceKind.RESERVED] * sum(problem.weights)
    count = 0
    while on_demand * sum(w for w, n in zip(problem.weights, needed, strict=True) if n > count) > whole:
        count += 1
    return count


def _load(problem: Problem, site: int, hour: int, found: First) -> float:
    """Replicas that the shares of a site keep busy."""
    load = 0.0
    for (route, when), share in found.shares.items():
        if route.site == site and when == hour:
            lane = problem.lanes[route.lane]
            load += share * lane.demand[route.origin][hour] / problem.sites[site].rate(lane.name, route.origin)
    return load
