"""One model's part of a placement problem. Models share nothing but quotas."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Self

from planning.capacity.problem import PriceKind, Problem, Quota
from planning.capacity.program import MAX_REPLICAS
from planning.capacity.routes import Route


@dataclass(frozen=True, slots=True)
class ModelPart:
    """The problem of one model, and the places of its lanes and sites in the whole."""

    problem: Problem
    lanes: tuple[int, ...]
    sites: tuple[int, ...]

    @classmethod
    def of(cls, problem: Problem, model: str) -> Self:
        lanes = tuple(number for number, lane in enumerate(problem.lanes) if lane.model == model)
        sites = tuple(number for number, site in enumerate(problem.sites) if site.model == model)
        own = replace(
            problem, lanes=tuple(problem.lanes[n] for n in lanes), sites=tuple(problem.sites[n] for n in sites)
        )
        return cls(own, lanes, sites)

    def route(self, route: Route) -> Route:
        """A route of the part as one of the whole."""
        return Route(self.lanes[route.lane], route.origin, self.sites[route.site])


def largest_first(problem: Problem) -> list[str]:
    """The models, by demand: the largest needs the quotas most."""
    demand: dict[str, float] = {}
    for lane in problem.lanes:
        demand[lane.model] = demand.get(lane.model, 0.0) + sum(sum(rates) for rates in lane.demand.values())
    return sorted(demand, key=lambda model: -demand[model])


def at_hour(problem: Problem, part: ModelPart, hour: int) -> Problem:
    """The part in one hour. The loss of a region is to be survived if the hour binds the model."""
    own = part.problem
    binds = problem.limits.survive_region and hour in own.binding_hours(own.lanes[0].model)
    return replace(
        own,
        lanes=tuple(
            replace(lane, demand={origin: (rates[hour],) for origin, rates in lane.demand.items()})
            for lane in own.lanes
        ),
        weights=(own.weights[hour],),
        quotas=tuple(replace(quota, gpus=quota.free(hour), taken=()) for quota in own.quotas),
        limits=replace(own.limits, survive_region=binds),
    )


def gpus_by_quota(problem: Problem, replicas: Mapping[tuple[int, PriceKind, int], int]) -> dict[Quota, list[int]]:
    """GPUs that replicas by (site, kind, hour) use of each quota, by hour; reserved ones have hour -1."""
    used = {quota: [0] * problem.hours for quota in problem.quotas}
    gpus: Counter[tuple[str, str, PriceKind, int]] = Counter()
    for (number, kind, hour), count in replicas.items():
        site = problem.sites[number]
        gpus[site.region, site.gpu, kind, hour] += count * site.gpus
    for (region, gpu, kind, hour), count in gpus.items():
        for quota in problem.quotas:
            if (quota.region, quota.gpu) == (region, gpu) and quota.kind in (None, kind):
                for each in range(problem.hours) if hour < 0 else (hour,):
                    used[quota][each] += count
    return used


def max_reserved(problem: Problem, number: int) -> int:
    """Replicas of a site that can be reserved for all hours."""
    site = problem.sites[number]
    quotas = [quota for quota in problem.quotas if quota.covers(site, PriceKind.RESERVED)]
    free = [quota.free(hour) // site.gpus for quota in quotas for hour in range(problem.hours)]
    return min(MAX_REPLICAS, max(0, min(free, default=MAX_REPLICAS)))


def whole_within_quotas(
    problem: Problem, reserved: Mapping[int, float], taken: Mapping[Quota, Sequence[int]]
) -> dict[int, int]:
    """Whole reserved replicas by site, and fewer where they go over what others leave of a quota: of the site that has
    the most."""
    whole = {site: round(count) for site, count in reserved.items() if round(count) > 0}
    for quota in problem.quotas:
        sites = [site for site in whole if quota.covers(problem.sites[site], PriceKind.RESERVED)]
        if sites:
            used = taken.get(quota) or [0] * problem.hours
            free = min(quota.free(hour) - gpus for hour, gpus in enumerate(used))
            while sum(whole[site] * problem.sites[site].gpus for site in sites) > max(0, free):
                whole[max(sites, key=whole.__getitem__)] -= 1
    return {site: count for site, count in whole.items() if count}
