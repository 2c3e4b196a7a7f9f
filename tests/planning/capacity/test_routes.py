"""Origins and sites that are alike count as one, and what comes out serves each of them."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog

from planning.capacity.placement import Outcome, place
from planning.capacity.problem import LaneDemand, Limits, PriceKind, Problem, Quota, Site
from planning.capacity.routes import AlikeRoutes, Route, alike_routes, divided

_USD = {PriceKind.ON_DEMAND: 1.0, PriceKind.SPOT: 0.5, PriceKind.RESERVED: 0.7}


def _chat(**changes: object) -> Problem:
    """One lane of two origins, one group in two regions, a tenth of a second apart."""
    lane = LaneDemand("chat", "m", {"a": (6.0,), "b": (2.0,)}, ttft_s=1.0)
    sites = tuple(Site("g", "m", region, "gpu", 1, {"chat": 2.0}, {PriceKind.ON_DEMAND: 1.0}) for region in "ab")
    facts = {"lanes": (lane,), "sites": sites, "rtt_s": {("a", "b"): 0.1, ("b", "a"): 0.1}}
    return Problem(**(facts | changes))  # type: ignore[arg-type]


def test_origins_and_sites_that_are_alike_are_one_way() -> None:
    assert alike_routes(_chat(), [0]) == [AlikeRoutes(0, ("a", "b"), (0, 1), 2.0, 0.0)]


def test_what_crossing_costs_tells_origins_and_sites_apart_until_a_region_is_lost() -> None:
    problem = _chat(usd_per_request={("a", "b"): 0.01})
    assert [(way.origins, way.sites, way.usd_per_request) for way in alike_routes(problem, [0])] == [
        (("a",), (0,), 0.0),
        (("b",), (0,), 0.0),
        (("a",), (1,), 0.01),
        (("b",), (1,), 0.0),
    ]
    assert alike_routes(problem, [0], lost="a") == [AlikeRoutes(0, ("a", "b"), (1,), 2.0, 0.0)]


def test_requests_stay_in_their_own_region_as_far_as_its_replicas_suffice() -> None:
    (way,) = alike_routes(problem := _chat(), [0])
    assert dict(divided(problem, way, 0, 1.0, {0: 3.0, 1: 1.0})) == {
        Route(0, "a", 0): pytest.approx(1.0),
        Route(0, "b", 1): pytest.approx(1.0),
    }
    assert dict(divided(problem, way, 0, 0.5, {0: 1.0, 1: 1.0})) == {
        Route(0, "a", 0): pytest.approx(1 / 3),
        Route(0, "a", 1): pytest.approx(1 / 6),
        Route(0, "b", 1): pytest.approx(1 / 2),
    }


@st.composite
def _alike(draw: st.DrawFn) -> Problem:
    """Two models, three regions, two groups, two hours, and demand that can be split at will. Some origins and sites
    differ in nothing, and quotas may tie the models."""
    regions, hours = ("a", "b", "c"), 2
    rate = st.sampled_from([0.0, 1.0, 2.5, 4.0])
    lanes = tuple(
        LaneDemand(
            name,
            model,
            {origin: tuple(draw(rate) for _ in range(hours)) for origin in regions},
            ttft_s=draw(st.sampled_from([0.1, 2.0])),
        )
        for model in ("m", "n")
        for name in ("short", "long")
    )
    sites = []
    for model, region, gpu in itertools.product(("m", "n"), regions, ("small", "large")):
        rates = {"short": 1.0 if gpu == "small" else 3.0} | ({"long": 2.0} if gpu == "large" else {})
        prices = {kind: draw(st.sampled_from([1.0, 1.5])) * usd for kind, usd in _USD.items()}
        far = {("short", origin): 0.8 for origin in regions if origin != region and draw(st.booleans())}
        sites.append(Site(gpu, model, region, gpu, 1, rates, prices, far))
    return Problem(
        lanes,
        tuple(sites),
        2,
        draw(st.sampled_from([(), (Quota("a", "small", 3), Quota("b", "small", 2))])),
        Limits(utilisation=0.8, spot_share=draw(st.sampled_from([0.5, 1.0])), survive_region=draw(st.booleans())),
        dict.fromkeys(itertools.permutations(regions, 2), 0.15),
        draw(st.sampled_from([{}, {("a", "b"): 1e-4}])),
    )


@pytest.mark.whole
@given(_alike())
@settings(max_examples=25, deadline=None)
def test_a_placement_serves_all_demand_and_keeps_all_limits(problem: Problem) -> None:
    found = place(problem, gap=0.01, limit_s=300.0)
    assert found.outcome is Outcome.PROVED
    for hour in range(problem.hours):
        counts = [found.count(site, hour) for site in range(len(problem.sites))]
        load = [0.0] * len(problem.sites)
        for number, lane in enumerate(problem.lanes):
            for origin, rates in lane.demand.items():
                own = {
                    route.site: share
                    for (route, when), share in found.shares.items()
                    if (route.lane, route.origin, when) == (number, origin, hour)
                }
                assert sum(own.values()) == pytest.approx(1.0 if rates[hour] else 0.0)
                for site, share in own.items():
                    assert problem.serves(lane, origin, problem.sites[site])
                    load[site] += share * rates[hour] / problem.sites[site].rate(lane.name, origin)
        assert all(one <= 0.8 * count + 1e-5 for one, count in zip(load, counts, strict=True))
        for quota in problem.quotas:
            assert (
                sum(n for n, site in zip(counts, problem.sites, strict=True) if quota.covers(site, PriceKind.ON_DEMAND))
                <= quota.gpus
            )
        for model in problem.models:
            own_sites = [number for number, site in enumerate(problem.sites) if site.model == model]
            spot = sum(found.count(site, hour, PriceKind.SPOT) for site in own_sites)
            assert spot <= problem.limits.spot_share * sum(counts[site] for site in own_sites) + 1e-6
            if problem.limits.survive_region and hour in problem.binding_hours(model):
                assert all(_survives(problem, model, hour, counts, lost) for lost in problem.regions)


def _survives(problem: Problem, model: str, hour: int, counts: list[int], lost: str) -> bool:
    """Whether the replicas elsewhere serve an hour's demand, at full rates: a linear program of its own."""
    ways, rows, limits = [], [], []
    demands = [
        (lane, origin, rates[hour])
        for lane in problem.lanes
        for origin, rates in lane.demand.items()
        if lane.model == model and rates[hour] > 0
    ]
    for number, (lane, origin, _) in enumerate(demands):
        ways += [
            (number, where, site.rate(lane.name, origin))
            for where, site in enumerate(problem.sites)
            if site.region != lost and problem.serves(lane, origin, site)
        ]
    for number_of, count in enumerate(counts):
        rows.append([demands[number][2] / rate if site == number_of else 0.0 for number, site, rate in ways])
        limits.append(count + 1e-5)
    served = {number for number, _, _ in ways}
    whole = [[1.0 if number == one else 0.0 for number, _, _ in ways] for one in sorted(served)]
    if not ways:
        return True
    return bool(linprog([0.0] * len(ways), rows, limits, whole, [1.0] * len(whole)).success)
