"""Placements against a plain program, against Melange's published example, and within limits."""

import math
from dataclasses import replace

import pytest
from hypothesis import given, settings

from planning.capacity.clash import clash, savings
from planning.capacity.placement import Outcome, place
from planning.capacity.problem import LaneDemand, Limits, PriceKind, Problem, Quota, Site
from tests.planning.capacity.plain_program import HOURLY, optimum, small_problems

NO_LIMITS = Limits()


def test_melange_example_costs_no_more_than_its_published_answer() -> None:
    """`melange/config/example.json` of tyler-griggs/melange-release (d46ab43): 30 requests/s in four sizes. Melange
    does not split a size, and needs $6.70."""
    shares = {"00": 0.2, "01": 0.1, "10": 0.5, "11": 0.2}
    rates = {"A10G": (1.01, (2.0, 1.0, 5.0, 2.0)), "A100-80GB": (3.67, (20.0, 20.0, 40.0, 20.0))}
    lanes = tuple(LaneDemand(size, "m", {"r": (30.0 * share,)}) for size, share in shares.items())
    sites = tuple(
        Site(gpu, "m", "r", gpu, 1, dict(zip(shares, own, strict=True)), {HOURLY: cost})
        for gpu, (cost, own) in rates.items()
    )
    found = place(Problem(lanes, sites), gap=0.0)
    assert found.outcome is Outcome.PROVED
    assert [found.count(site, 0) for site in (0, 1)] == [1, 1], "an A100 lacks an eighth of itself: one A10G"
    assert found.cost_usd == pytest.approx(4.68)


@pytest.mark.whole
@given(small_problems())
@settings(max_examples=60, deadline=None)
def test_the_optimum_is_that_of_a_plain_program(problem: Problem) -> None:
    found, best = place(problem, gap=0.0), optimum(problem)
    if best == math.inf:
        assert found.outcome is Outcome.INFEASIBLE
    else:
        assert found.outcome is Outcome.PROVED
        assert found.cost_usd == pytest.approx(best)


def _two_regions(limits: Limits = NO_LIMITS, quotas: tuple[Quota, ...] = ()) -> Problem:
    lane = LaneDemand("chat", "m", {"a": (10.0, 4.0), "b": (6.0, 2.0)}, ttft_s=1.0)
    sites = tuple(
        Site("g", "m", region, "gpu", 1, {"chat": 2.0}, {HOURLY: price}) for region, price in (("a", 1.0), ("b", 1.5))
    )
    return Problem((lane,), sites, 2, quotas, limits, {("a", "b"): 0.05, ("b", "a"): 0.05})


def test_a_lost_region_is_survived_in_the_hours_that_bind() -> None:
    found = place(_two_regions(Limits(survive_region=True)), gap=0.0)
    assert [[found.count(site, hour) for hour in (0, 1)] for site in (0, 1)] == [[8, 3], [8, 0]]


def test_failures_leave_spares_where_a_site_is_used() -> None:
    found = place(_two_regions(Limits(failures=1)), gap=0.0)
    assert [[found.count(site, hour) for hour in (0, 1)] for site in (0, 1)] == [[9, 4], [0, 0]]


def test_an_impossible_problem_names_what_clashes() -> None:
    quotas = (Quota("a", "gpu", 3), Quota("b", "gpu", 4), Quota("c", "gpu", 1))
    problem = _two_regions(quotas=quotas)
    assert place(problem).outcome is Outcome.INFEASIBLE
    assert clash(problem) == ("quota of 3 gpu in a", "quota of 4 gpu in b")


def test_a_clash_of_ttft_and_residency_is_named() -> None:
    problem = _two_regions()
    lane = replace(problem.lanes[0], ttft_s=0.04, regions=frozenset({"b"}))  # 0.05 s from a
    assert place(replace(problem, lanes=(lane,))).outcome is Outcome.INFEASIBLE
    assert clash(replace(problem, lanes=(lane,))) == ("TTFT of m: chat at most 0.04 s", "residency of m: chat: b")


def test_a_requirement_that_only_whole_replicas_break_is_named() -> None:
    lane = LaneDemand("chat", "m", {"a": (3.0,)})
    site = Site("x", "m", "a", "x", 2, {"chat": 2.0}, {HOURLY: 1.0})
    problem = Problem((lane,), (site,), quotas=(Quota("a", "x", 3),))
    assert clash(problem) == ("quota of 3 x in a",)


def test_a_lane_that_fits_no_site_is_named() -> None:
    problem = _two_regions()
    long = LaneDemand("long", "m", {"a": (1.0, 0.0)})
    assert clash(replace(problem, lanes=(*problem.lanes, long))) == ("m: long from a: fits no site",)


def test_a_demand_beyond_what_can_be_placed_is_named() -> None:
    site = Site("x", "m", "a", "x", 1, {"chat": 2.0}, {HOURLY: 1.0})
    problem = Problem((LaneDemand("chat", "m", {"a": (3e5,)}),), (site,))
    assert clash(problem) == ("the demand takes more than 100,000 replicas of a group in a region",)


def test_a_far_origin_has_a_rate_of_its_own() -> None:
    problem = _two_regions()
    lane = replace(problem.lanes[0], demand={"b": (6.0, 2.0)}, regions=frozenset({"a"}))
    near = replace(problem, lanes=(lane,))
    far = replace(near, sites=(replace(problem.sites[0], rates_from={("chat", "b"): 1.0}), problem.sites[1]))
    none = replace(near, sites=(replace(problem.sites[0], rates_from={("chat", "b"): 0.0}), problem.sites[1]))
    assert [place(one, gap=0.0).cost_usd for one in (near, far, none)] == [4.0, 8.0, math.inf]


def test_a_limit_that_binds_has_its_price() -> None:
    problem = _two_regions(quotas=(Quota("a", "gpu", 6),))
    (found,) = savings(problem)
    assert (found.requirement, found.step) == ("quota of 6 gpu in a", "1 GPU more")
    assert (found.without_usd, found.step_usd) == (pytest.approx(2 * 0.5), pytest.approx(0.5))


def test_residency_is_kept_when_its_region_is_lost() -> None:
    problem = _two_regions(Limits(survive_region=True))
    lane = problem.lanes[0]
    bound = LaneDemand(lane.name, lane.model, lane.demand, lane.ttft_s, frozenset({"b"}))
    found = place(Problem((bound,), problem.sites, problem.hours, (), problem.limits, problem.rtt_s), gap=0.0)
    assert found.count(0, 0) == 0
    assert set(found.unprotected) == {("m: chat", "a", "b"), ("m: chat", "b", "b")}


def _a_day_of(models: int, prices: dict[PriceKind, float], quotas: tuple[Quota, ...] = ()) -> Problem:
    """Three regions with six hours of a day each, and three kinds of replicas."""
    days = {
        region: tuple(5 + 4 * math.cos((hour + 8 * number) / 4) for hour in range(0, 24, 4))
        for number, region in enumerate("abc")
    }
    lanes = [LaneDemand(name, f"m{number}", days) for number in range(models) for name in ("short", "long")]
    sites = [
        Site(gpu, f"m{number}", region, gpu, 1, rates, {kind: usd * share for kind, share in prices.items()})
        for number in range(models)
        for region in "abc"
        for gpu, usd, rates in (
            ("small", 1.0, {"short": 0.9}),
            ("middle", 2.1, {"short": 1.9, "long": 0.4}),
            ("large", 7.3, {"short": 6.1, "long": 2.3}),
        )
    ]
    return Problem(tuple(lanes), tuple(sites), 6, quotas, Limits(0.9, 0.3, failures=1))


@pytest.mark.whole
def test_hours_that_nothing_binds_together_are_placed_one_by_one() -> None:
    found = place(_a_day_of(1, {HOURLY: 1.0, PriceKind.SPOT: 0.5}), gap=0.01, limit_s=300.0)
    assert found.outcome is Outcome.PROVED


@pytest.mark.whole
def test_models_that_meet_at_a_quota_keep_it() -> None:
    alone = place(_a_day_of(1, {HOURLY: 1.0}), limit_s=300.0)
    used = max(sum(alone.count(site, hour) for site in (1, 4, 7)) for hour in range(6))
    assert used > 1
    problem = _a_day_of(2, {HOURLY: 1.0}, tuple(Quota(region, "middle", 1) for region in "abc"))
    found = place(problem, limit_s=60.0)
    assert found.outcome in (Outcome.PROVED, Outcome.TIME_LIMIT)
    middle = [number for number, site in enumerate(problem.sites) if site.gpu == "middle"]
    for region in "abc":
        for hour in range(6):
            assert sum(found.count(one, hour) for one in middle if problem.sites[one].region == region) <= 1
