"""Small random problems, and their optima by brute force."""

import itertools
import math

from hypothesis import strategies as st

from planning.capacity.problem import LaneDemand, Limits, PriceKind, Problem, Quota, Site

HOURLY = PriceKind.ON_DEMAND


@st.composite
def small_problems(draw: st.DrawFn) -> Problem:
    """One model, two lanes, two regions, two groups, two hours; demand in whole parts, so that brute force is exact."""
    rate = st.sampled_from([0.0, 1.0, 2.5, 4.0])
    regions, hours = ("a", "b"), 2
    lanes = tuple(
        LaneDemand(
            name,
            "m",
            {origin: tuple(draw(rate) for _ in range(hours)) for origin in regions},
            ttft_s=draw(st.sampled_from([0.5, 2.0])),
            regions=draw(st.sampled_from([None, frozenset({"a"})])),
            slices=1,
        )
        for name in ("short", "long")
    )
    sites = []
    for region, (gpu, long_rate) in itertools.product(regions, (("small", None), ("large", 2.0))):
        rates = {"short": draw(st.sampled_from([1.0, 3.0]))} | ({"long": long_rate} if long_rate else {})
        prices = {HOURLY: draw(st.sampled_from([1.0, 2.0, 3.5]))}
        if draw(st.booleans()):
            prices[PriceKind.RESERVED] = draw(st.sampled_from([0.5, 0.7])) * prices[HOURLY]
        sites.append(Site(gpu, "m", region, gpu, 1, rates, prices, {"short": 0.1, "long": 0.4}))
    quotas = draw(st.sampled_from([(), (Quota("a", "large", 2),)]))
    limits = Limits(
        utilisation=draw(st.sampled_from([1.0, 0.8])),
        failures=draw(st.sampled_from([0, 1, 2])),
        survive_region=draw(st.booleans()),
        binding=draw(st.sampled_from([1.0, 0.6])),
    )
    return Problem(lanes, tuple(sites), (1.0, 1.0), quotas, limits, {("a", "b"): 0.3, ("b", "a"): 0.3})


Vectors = set[tuple[int, ...]]


def brute_force(problem: Problem) -> float:
    """Every way to give each lane's demand of an origin and hour to one site, also while a region is lost; inf where
    none is allowed."""
    by_hour = [_enough(problem, hour) for hour in range(problem.hours)]
    best = math.inf
    for chosen in itertools.product(*by_hour):
        cost = 0.0
        for number, site in enumerate(problem.sites):
            needed = [loads[number] for loads in chosen]
            cost += min(
                reserved * site.prices.get(PriceKind.RESERVED, math.inf if reserved else 0.0) * problem.hours
                + sum(max(0, count - reserved) for count in needed) * site.prices[HOURLY]
                for reserved in range(max(needed) + 1)
                if reserved == 0 or PriceKind.RESERVED in site.prices
            )
        best = min(best, cost)
    return best


def _enough(problem: Problem, hour: int) -> Vectors:
    """The smallest replicas by site that serve an hour, and the loss of each region in it, if it binds."""
    limits = problem.limits
    found = _loads(problem, hour, None, limits.utilisation, limits.failures)
    if limits.survive_region and hour in problem.binding_hours("m"):
        for lost in problem.regions:
            other = _loads(problem, hour, lost, 1.0, 0)
            found = {tuple(map(max, one, two)) for one in found for two in other}
    fits = {
        counts
        for counts in found
        if all(
            sum(n for n, site in zip(counts, problem.sites, strict=True) if quota.covers(site, HOURLY)) <= quota.gpus
            for quota in problem.quotas
        )
    }
    return _smallest(fits)


def _smallest(vectors: Vectors) -> Vectors:
    return {
        one
        for one in vectors
        if not any(two != one and all(a <= b for a, b in zip(two, one, strict=True)) for two in vectors)
    }


def _loads(problem: Problem, hour: int, lost: str | None, utilisation: float, failures: int) -> Vectors:
    """The replicas by site of every allowed assignment of an hour. While a region is lost, what nothing else may serve
    is left out."""
    pieces, ways = [], []
    for lane in problem.lanes:
        for origin, rates in lane.demand.items():
            own = [
                number
                for number, site in enumerate(problem.sites)
                if problem.serves(lane, origin, site) and site.region != lost
            ]
            if rates[hour] > 0 and (own or lost is None):
                pieces.append((lane, rates[hour]))
                ways.append(own)
    found = set()
    for chosen in itertools.product(*ways):
        load = [0.0] * len(problem.sites)
        for (lane, rate), number in zip(pieces, chosen, strict=True):
            load[number] += rate / problem.sites[number].rates[lane.name]
        found.add(tuple(math.ceil(max(one / utilisation, one + failures if one else 0.0) - 1e-9) for one in load))
    return _smallest(found)
