"""What holds for every re-plan, whatever is observed: judged by a flow problem of its own (`cases.covers`)."""

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from planning.capacity.problem import LaneDemand, Limits, Problem, Quota
from planning.replan import Observed, ReplanBasis, ReplanSettings, ReplanState, SiteKey, SiteState, replan
from planning.replan.result import PlanCoverage, Replan
from tests.planning.replan.cases import REGIONS, Cluster, basis, covers, key, site

pytestmark = pytest.mark.whole
LANES = ("m: all", "m: home")


@st.composite
def _bases(draw: st.DrawFn) -> ReplanBasis:
    """Two or three regions; one lane that may be served everywhere and one that may not leave the first region."""
    regions = REGIONS[: draw(st.integers(2, 3))]
    lanes = (LaneDemand("all", "m", {}), LaneDemand("home", "m", {}, regions=frozenset({"a"})))
    usd = st.sampled_from([0.5, 1.0, 1.1, 3.0])
    sites, keys = [], []
    for region in regions:
        for group in ("m", "m@large")[: draw(st.integers(1, 2))]:
            one = site(region, draw(usd), group=group, gpu="L4" if group == "m" else "H100")
            rate = draw(st.sampled_from([0.7, 1.0, 4.0]))
            sites.append(replace(one, rates={"all": rate, "home": rate}))
            keys.append(SiteKey(region, group))
    quotas = draw(st.sampled_from([(), (Quota("a", "L4", 6),), (Quota("a", "L4", 4), Quota("b", "L4", 3))]))
    limits = Limits(draw(st.sampled_from([1.0, 0.8])), survive_region=draw(st.booleans()))
    trips = {(one, other): 0.05 for one in regions for other in regions if one != other}
    problem = Problem(lanes, tuple(sites), quotas=quotas, limits=limits, rtt_s=trips)
    return ReplanBasis(problem, tuple(keys), (0,) * len(keys), (draw(st.sampled_from([4, 30])),) * len(keys))


_rates = st.sampled_from([0.0, 0.4, 1.0, 2.5, 6.0])


def _observed(draw: st.DrawFn, of: ReplanBasis, there: dict[SiteKey, int], now: float) -> Observed:
    regions = sorted({one.region for one in of.sites})
    lost = frozenset(draw(st.sampled_from([(), (), (), ("b",)])))
    states = {}
    for one in of.sites:
        count = there.get(one, draw(st.integers(0, 3)))
        ready = draw(st.sampled_from([count, count, max(0, count - 1), 0]))
        states[one] = SiteState(count, ready, draw(st.sampled_from([None, None, None, count])))
    usd = {one: draw(st.sampled_from([0.5, 1.0, 2.0])) for one in of.sites if draw(st.booleans())}
    demand = {(lane, origin): draw(_rates) for lane in LANES for origin in regions}
    return Observed(now, demand, states, usd, lost)


@settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_floors_cover_what_targets_cover_within_quotas_spec_residency_and_steps(data: st.DataObject) -> None:
    of, how = data.draw(_bases()), ReplanSettings(step=data.draw(st.integers(1, 3)), hold_s=600.0)
    state, there = ReplanState(), dict[SiteKey, int]()
    for turn in range(5):
        seen = _observed(data.draw, of, there, 300.0 * turn)
        plan = replan(of, how, state, seen)
        _judge(of, how, seen, plan)
        state = plan.state
        there = {one.site: one.floor for one in plan.bounds}


def _judge(of: ReplanBasis, how: ReplanSettings, seen: Observed, plan: Replan) -> None:
    """`seen` has no lost region, or there is no memory of an earlier demand that this judge would have to follow."""
    floors = {one.site: one.floor for one in plan.bounds}
    highest = {one: upper for one, (_, upper) in plan.state.bounds.items()}
    before = {one.site: min(one.before, highest[one.site]) for one in plan.bounds}
    survive = of.problem.limits.survive_region and not seen.lost
    now = {key: rate for key, rate in seen.demand.items() if key[1] not in seen.lost}
    if plan.coverage is PlanCoverage.ALL:
        assert covers(of, floors, now, survive), "below what the demand, or the loss of a region, needs"
    for one in plan.bounds:
        assert one.floor <= one.ceiling <= max(highest[one.site], one.floor)
        assert one.floor <= max(highest[one.site], 0)
        assert one.site.region not in seen.lost
    if not seen.lost:
        _judge_steps(of, how, seen, plan, before, floors)
    for quota in of.problem.quotas:
        assert of.gpus(quota, {one.site: one.ceiling for one in plan.bounds}) <= max(
            quota.gpus, of.gpus(quota, before)
        ), "beyond a quota"
    for (lane, _, served_at), rate in plan.served.items():
        assert lane == "m: all" or served_at.region == "a" or rate == 0, "across residency"


def _judge_steps(
    of: ReplanBasis,
    how: ReplanSettings,
    seen: Observed,
    plan: Replan,
    before: dict[SiteKey, int],
    floors: dict[SiteKey, int],
) -> None:
    """Where what was there covers the highest demand expected lately, floors move by a step, and down only by what the
    ready replicas leave."""
    planned: dict[tuple[str, str], float] = {}
    for _, expected in plan.state.expected:
        for lane, rate in expected.items():
            planned[lane] = max(rate, planned.get(lane, 0.0))
    survive = of.problem.limits.survive_region
    if not covers(of, before, planned, survive):
        return
    for one, floor in floors.items():
        assert abs(floor - before[one]) <= how.steps(before[one]), "more than a step"
    if any(floor < before[one] for one, floor in floors.items()):
        ready = {one: min(floor, seen.states[one].ready) for one, floor in floors.items()}
        assert covers(of, ready, planned, survive), "lowered before its replacement is ready"


@settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_prices_that_wobble_within_the_margin_never_bring_a_placement_back(data: st.DataObject) -> None:
    """Each placement that is given up stays given up, while the demand stays and prices stay within the margin."""
    listed = {region: data.draw(st.sampled_from([1.0, 1.05, 1.2, 2.0])) for region in REGIONS}
    margin = data.draw(st.sampled_from([0.05, 0.1, 0.3]))
    survive = data.draw(st.booleans())
    cluster = Cluster(
        basis(listed, survive=survive), {key(region): 2 for region in REGIONS}, ReplanSettings(margin=margin)
    )
    demand = {region: data.draw(st.sampled_from([0.5, 2.0, 3.3])) for region in REGIONS}
    wobble = st.floats(1.0, 1.0 + margin)
    seen: list[tuple[int, ...]] = []
    for _ in range(12):
        usd = {key(region): listed[region] * data.draw(wobble) for region in REGIONS}
        now = tuple(one.target for one in cluster.replan(demand, usd=usd).bounds)
        assert now not in seen[:-1] or now == seen[-1], "a placement came back"
        seen.append(now)


@settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_demand_that_trembles_around_a_replica_does_not_make_floors_tremble(data: st.DataObject) -> None:
    cluster = Cluster(basis({"a": 1.0, "b": 1.0}), {key("a"): 3, key("b"): 2}, ReplanSettings(hold_s=900.0))
    found = []
    for _ in range(16):
        demand = {"a": data.draw(st.floats(2.9, 3.1)), "b": 2.0}
        found.append(sum(one.floor for one in cluster.replan(demand).bounds))
    assert sum(later < one for one, later in pairwise(found)) <= 16 / 4
