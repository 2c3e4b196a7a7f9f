"""Asks HiGHS for the placement of one moment, from the replicas that are planned already.

    minimise    sum of price * replicas                                     what they cost an hour
              + sum of margin * price * max(0, replicas - before)           what a move must save at least
              + sum of the price of a crossing * requests that cross        transfer, and a share for the hop itself
              + MISSING * replicas that are missing

under the rows of `planning/capacity/program.py` (demand, capacity, loss of a region, quotas, residency, TTFT), and
within what the spec allows and what can be had. Each model has stand-ins for missing replicas in each region, far
dearer than all else, so that there is always an answer, and it says what is missing.

Why nothing moves to and fro. A placement is given up only for a better one, by this sum. Say a site's price stays
within a factor of 1 + margin, and demand and limits stay. In a cycle of placements each site gains as many replicas as
it loses. What is gained costs at least (1 + margin) * its lowest price, which is its highest one; what is lost saves at
most its highest price. So the cycle as a whole saves nothing, though each of its steps does: there is none.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Self

from planning.capacity.problem import PriceKind, Problem, Site
from planning.capacity.program import Program, build, shares_of
from planning.capacity.solver import Solved, solve
from planning.replan.basis import Demand, ReplanBasis, ReplanSettings, SiteKey

Counts = Mapping[SiteKey, int]

_MISSING = 1_000.0
"""The price of a missing replica, in replicas of the dearest site."""
_FREE_USD = 1e-3
"""A replica without a price counts as so dear, so that no more are planned than are needed."""
_HOUR_S = 3_600.0
_GAP, _LIMIT_S = 1e-3, 10.0
"""How near to the optimum is enough, as a share, and for how long it is searched for. Neither brings a placement back:
what was there is compared with what was found."""
_ROUND = 1e-6
_STAND_IN = ""
"""The group and the GPU of the replicas that are missing."""
_NO_LIMIT = 1e9


@dataclass(frozen=True, slots=True)
class FoundReplicas:
    """Replicas by site. `cost`: the sum above, US dollars an hour. `missing`: replicas by (model, region). `served`:
    requests/s by (lane's title, origin, site). `unserved`: (lane's title, origin) that no site may serve."""

    counts: dict[SiteKey, int] = field(default_factory=dict)
    cost: float = 0.0
    missing: dict[tuple[str, str], float] = field(default_factory=dict)
    served: dict[tuple[str, str, SiteKey], float] = field(default_factory=dict)
    unserved: tuple[tuple[str, str], ...] = ()

    @property
    def covers(self) -> bool:
        """Whether nothing is missing."""
        return not self.missing

    def joined(self, other: "FoundReplicas") -> "FoundReplicas":
        """Both parts together."""
        return FoundReplicas(
            self.counts | other.counts,
            self.cost + other.cost,
            self.missing | other.missing,
            self.served | other.served,
            self.unserved + other.unserved,
        )


@dataclass(frozen=True, slots=True)
class Moment:
    """What is asked at one moment: `bounds` are the replicas that each site may have (sites without are not there),
    `survive`: the models that must survive the loss of a region."""

    basis: ReplanBasis
    demand: Demand
    usd_per_hour: Mapping[SiteKey, float]
    bounds: Mapping[SiteKey, tuple[int, int]]
    survive: frozenset[str]
    settings: ReplanSettings

    def best(self, before: Counts) -> FoundReplicas:
        """The cheapest placement from there; `before` itself, where that covers everything and nothing is better."""
        found = FoundReplicas()
        for part in self._parts():
            own = part.solved(self, before, fixed=False)
            stays = part.solved(self, before, fixed=True) if part.within(self, before) else None
            if stays is not None and stays.covers and (not own.covers or stays.cost <= own.cost * (1 + _ROUND)):
                own = stays
            found = found.joined(own)
        return found

    def with_counts(self, counts: Counts) -> FoundReplicas:
        """What those replicas serve, and what is missing beside them."""
        found = FoundReplicas()
        for part in self._parts():
            found = found.joined(part.solved(self, counts, fixed=True))
        return found

    def _parts(self) -> "list[_Part]":
        return [_Part.of(self, models) for models in _apart(self.basis.problem)]


def _apart(problem: Problem) -> list[tuple[str, ...]]:
    """The models, in sets that share no quota with each other."""
    sets: list[set[str]] = [{model} for model in problem.models]
    for quota in problem.quotas:
        covered = {site.model for site in problem.sites if any(quota.covers(site, kind) for kind in site.prices)}
        joined = [one for one in sets if one & covered]
        if len(joined) > 1:
            sets = [one for one in sets if not one & covered] + [set().union(*joined)]
    return [tuple(model for model in problem.models if model in one) for one in sets]


@dataclass(frozen=True, slots=True)
class _Part:
    """Some models' problem. `keys`: of its sites; None: a stand-in."""

    problem: Problem
    keys: tuple[SiteKey | None, ...]
    weight: Mapping[SiteKey, float]
    missing_usd: float

    @classmethod
    def of(cls, moment: Moment, models: tuple[str, ...]) -> Self:
        whole, basis = moment.basis.problem, moment.basis
        lanes = tuple(
            replace(
                lane,
                demand={
                    origin: (rate,)
                    for (title, origin), rate in moment.demand.items()
                    if title == lane.title and rate > 0
                },
            )
            for lane in whole.lanes
            if lane.model in models
        )
        weight, sites, keys = {}, [], []
        for key, site in zip(basis.sites, whole.sites, strict=True):
            if site.model in models and key in moment.bounds:
                kind, listed = next(iter(site.prices.items()))
                weight[key] = max(_FREE_USD, moment.usd_per_hour.get(key, listed))
                sites.append(replace(site, prices={kind: weight[key]}))
                keys.append(key)
        missing_usd = _MISSING * max(weight.values(), default=1.0)
        stand_ins = _stand_ins(sites, missing_usd)
        limits = replace(whole.limits, survive_region=bool(moment.survive & set(models)), binding=1.0)
        problem = Problem(
            lanes,
            (*sites, *stand_ins),
            (1.0,),
            whole.quotas,
            limits,
            whole.rtt_s,
            _crossings(whole, models, moment.settings.hop_share),
        )
        return cls(problem, (*keys, *(None for _ in stand_ins)), weight, missing_usd)

    def within(self, moment: Moment, counts: Counts) -> bool:
        """Whether those replicas are within the bounds and the quotas."""
        for key in self.weight:
            lowest, highest = moment.bounds[key]
            if not lowest <= counts.get(key, 0) <= highest:
                return False
        own = {key: counts.get(key, 0) for key in self.weight}
        if any(moment.basis.gpus(quota, own) > quota.free(0) for quota in self.problem.quotas):
            return False
        return all(self._spot_share(model, counts) <= self.problem.limits.spot_share for model in self.problem.models)

    def _spot_share(self, model: str, counts: Counts) -> float:
        own = [
            (counts.get(key, 0), PriceKind.SPOT in site.prices)
            for key, site in zip(self.keys, self.problem.sites, strict=True)
            if key is not None and site.model == model
        ]
        return sum(count for count, spot in own if spot) / max(1, sum(count for count, _ in own))

    def solved(self, moment: Moment, counts: Counts, *, fixed: bool) -> FoundReplicas:
        """The best placement from `counts`, or `fixed`: what just those replicas serve, whatever quotas say of them."""
        problem = self.problem
        if fixed:
            problem = replace(problem, quotas=(), limits=replace(problem.limits, spot_share=1.0))
        program = build(problem)
        for (number, _, _), column in program.counts.items():
            key = self.keys[number]
            if key is None:
                program.integer[column], program.upper[column] = False, _NO_LIMIT
                continue
            there = counts.get(key, 0)
            lowest, highest = (there, there) if fixed else moment.bounds[key]
            program.lower[column], program.upper[column] = float(lowest), float(highest)
            if not fixed and moment.settings.margin:
                more = program.column(moment.settings.margin * self.weight[key], _NO_LIMIT, integer=False)
                program.row(0, -math.inf, float(there), [(column, 1.0), (more, -1.0)])
        return self._found(program, solve(program, gap=_GAP, limit_s=_LIMIT_S), counts)

    def _found(self, program: Program, solved: Solved, before: Counts) -> FoundReplicas:
        if solved.values is None:  # not found in time, or the spec's minimums break a quota: everything stays
            return FoundReplicas({key: before.get(key, 0) for key in self.weight}, math.inf, {("", ""): 1.0})
        counts, missing = {}, {}
        for (number, _, _), column in program.counts.items():
            key, site = self.keys[number], self.problem.sites[number]
            if key is not None:
                counts[key] = round(solved.values[column])
            elif solved.values[column] > _ROUND:
                missing[site.model, site.region] = solved.values[column]
        served = {}
        for (route, _), share in shares_of(self.problem, program, solved.values).items():
            lane, key = self.problem.lanes[route.lane], self.keys[route.site]
            if key is not None:
                served[lane.title, route.origin, key] = share * lane.demand[route.origin][0]
        return FoundReplicas(counts, solved.cost, missing, served, tuple(program.unserved))


def _stand_ins(sites: Iterable[Site], usd: float) -> list[Site]:
    """One for each model and region: as fast as the fastest site there for each lane."""
    found: dict[tuple[str, str], Site] = {}
    for site in sites:
        before = found.get((site.model, site.region))
        own = replace(site, group=_STAND_IN, gpu=_STAND_IN, gpus=1, prices={PriceKind.ON_DEMAND: usd})
        found[site.model, site.region] = own if before is None else _faster(before, own)
    return list(found.values())


def _faster(one: Site, other: Site) -> Site:
    """`one`, at the better rate and TTFT of both for each lane."""
    lanes = dict.fromkeys((*one.rates, *other.rates))
    pairs = dict.fromkeys((*one.rates_from, *other.rates_from))
    return replace(
        one,
        rates={lane: max(one.rates.get(lane, 0.0), other.rates.get(lane, 0.0)) for lane in lanes},
        rates_from={pair: max(one.rate(*pair), other.rate(*pair)) for pair in pairs},
        ttft_s={lane: min(site.ttft_s.get(lane, 0.0) for site in (one, other) if lane in site.rates) for lane in lanes},
    )


def _crossings(problem: Problem, models: tuple[str, ...], hop_share: float) -> dict[tuple[str, str], float]:
    """US dollars a request that crosses: the transfer, and a share of what the cheapest request costs."""
    work = [
        max(_FREE_USD, *site.prices.values()) / (rate * _HOUR_S)
        for site in problem.sites
        if site.model in models
        for rate in site.rates.values()
    ]
    hop = hop_share * min(work, default=0.0)
    return {
        (origin, region): hop + problem.usd_per_request.get((origin, region), 0.0)
        for origin, region in {*problem.rtt_s, *problem.usd_per_request}
        if origin != region
    }
