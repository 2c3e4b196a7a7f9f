"""Plans without a simulator: what they serve, what they cost, and what else could be bought."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.spec import parse_spec
from planning.capacity.placement import Outcome
from planning.capacity.problem import PriceKind
from planning.plans.answer import token_prices
from planning.plans.as_json import as_json
from planning.plans.compare import break_even, elsewhere
from planning.plans.planner import PlanError, PlanLimits, found_rates, planned
from planning.plans.rates import GroupRate, RateJob, input_share
from planning.plans.result import PlanResult
from planning.plans.write_spec import written_spec
from tests.planning.plans import small

pytestmark = pytest.mark.whole
LIMITS = PlanLimits(gap=0.02, limit_s=300)


def test_a_plan_serves_all_demand_within_its_limits(tmp_path: Path) -> None:
    plan = small.plan(tmp_path)
    assert plan.placement.outcome in (Outcome.PROVED, Outcome.TIME_LIMIT)
    for hour in plan.hours:
        served = sum(rates[hour] for group in plan.groups for rates in group.served.values())
        assert served == pytest.approx(sum(rates[hour] for rates in plan.case.streams[0].rates.values()))
        for group in plan.groups:
            assert group.load(hour) <= 0.9 * group.count(hour) + 1e-6
            assert 0 <= group.warm(hour, plan.utilisation) <= group.count(hour)
    for group in plan.groups:
        longest = {band.name: band.longest for band in plan.case.bands}
        assert all(longest[band] <= group.offer.context for band, _ in group.served)


def test_what_it_costs_adds_up(tmp_path: Path) -> None:
    plan = small.plan(tmp_path)
    assert sum(map(plan.usd, plan.hours)) == pytest.approx(plan.placement.cost_usd, rel=1e-4), (
        "transfers: of the mean request"
    )
    (tokens,) = token_prices(plan)
    inputs = tokens.usd_per_input_mtok * tokens.input_mtok_per_day
    outputs = tokens.usd_per_output_mtok * tokens.output_mtok_per_day
    assert inputs + outputs == pytest.approx(tokens.usd_per_day)
    assert tokens.usd_per_day == pytest.approx(24 * plan.usd_per_hour)
    requests = 3600 * sum(sum(rates) for rates in plan.case.streams[0].rates.values())
    assert tokens.output_mtok_per_day == pytest.approx(20 * requests / 1e6)
    assert plan.gpu_hours_per_day == sum(plan.count(hour) for hour in plan.hours)


def test_long_prompts_cost_more_of_their_work(tmp_path: Path) -> None:
    case = small.case(tmp_path)
    short, long = sorted(case.bands, key=lambda band: band.input_tokens)
    for offer in case.serving(long):
        assert 0 < input_share(offer, short) < input_share(offer, long) < 1


def test_residency_keeps_requests_at_home(tmp_path: Path) -> None:
    plan = small.plan(tmp_path, small.chat(residency=["eu-central-1"]))
    assert {group.region for group in plan.groups} == {"eu-central-1"}
    us = [key for group in plan.groups for key in group.served if key[1] == "us-east-1"]
    assert us
    assert all(plan.usd(hour) > sum(group.usd(hour) for group in plan.groups) for hour in plan.hours)


def test_a_region_that_is_too_far_serves_nothing_of_another(tmp_path: Path) -> None:
    plan = small.plan(tmp_path, small.chat(slo={"ttft_ms": 150}))
    assert all(origin == group.region for group in plan.groups for _, origin in group.served)


def test_spot_is_bought_up_to_its_share(tmp_path: Path) -> None:
    plan = small.plan(tmp_path, {"prices": {"spot": {"max_share": 0.5}}})
    assert 0 < plan.spot_share <= 0.5
    for hour in plan.hours:
        spot = sum(group.replicas.get(PriceKind.SPOT, (0,) * 24)[hour] for group in plan.groups)
        assert spot <= 0.5 * plan.count(hour)


def test_any_region_may_be_lost_at_the_peak(tmp_path: Path) -> None:
    plan = small.plan(tmp_path, {"survive": {"any_one_region": True}})
    peak = max(plan.hours, key=lambda hour: sum(r[hour] for r in plan.case.streams[0].rates.values()))
    for lost in ("us-east-1", "eu-central-1"):
        left = [group for group in plan.groups if group.region != lost]
        assert sum(group.count(peak) for group in left) > 0
    assert plan.usd_per_hour > small.plan(tmp_path).usd_per_hour


def test_what_cannot_be_placed_names_what_clashes(tmp_path: Path) -> None:
    quotas = [
        {"gpu": gpu, "region": region, "gpus": 0} for gpu in ("L4", "H100") for region in ("us-east-1", "eu-central-1")
    ]
    plan = small.plan(tmp_path, {"quotas": quotas})
    assert not plan.feasible
    assert plan.groups == ()
    assert any("quota of 0" in clash for clash in plan.clashes)
    result = PlanResult(plan)
    assert not result.good
    assert result.headline == "There is no placement that meets all requirements"
    assert as_json(result)["totals"] is None


@pytest.mark.parametrize(
    ("change", "held", "reason"),
    [
        (
            {"residency": ["eu-central-1"]},
            1.0,
            "residency allows eu-central-1, and the groups that may serve it are in us-",
        ),
        ({"slo": {"ttft_ms": 50}}, 1.0, "a round trip takes more than half of its TTFT, 50 ms: us-east-1 9"),
        ({}, 0.0, "a lone request misses its SLO (cheap (L4): ttft; large (H100): ttft)"),
    ],
)
def test_what_fits_no_site_says_why(tmp_path: Path, change: dict[str, Any], held: float, reason: str) -> None:
    """Short prompts from Europe, where no group is; where all rates are 0, long ones have one."""
    candidates = [one | {"regions": ["us-east-1"]} for one in small.SHEET["candidates"]]
    case = small.case(tmp_path, {"demand": [small.CHAT | change], "candidates": candidates})
    rates = {
        key: replace(one, per_replica=one.per_replica * (held or ("medium" in key[2] or "long" in key[2])))
        for key, one in small.rates(case).items()
    }
    clashes = planned(case, rates, 0.9, LIMITS, lambda text: None).clashes
    assert any(f"from eu-central-1: fits no site: {reason}" in one for one in clashes), clashes


def test_where_nothing_arrives_there_is_nothing_to_miss(tmp_path: Path) -> None:
    result = PlanResult(small.plan(tmp_path, small.chat(rates=small.steadily(0.0))))
    assert result.headline.endswith("nothing arrives")
    assert result.good


@given(st.floats(0.1, 1e4), st.floats(0.01, 1e4), st.floats(0.01, 1e4))
def test_the_break_even_is_where_both_cost_the_same(fixed: float, each: float, bought: float) -> None:
    """Own costs of a fixed part, and so much for the whole volume."""
    found = break_even(lambda scale: fixed + each * scale, bought)
    exact = fixed / (bought - each) if bought > each else math.inf
    if found == 0:
        assert exact <= 1 / 256
    elif math.isinf(found):
        assert exact >= 16
    else:
        assert found == pytest.approx(exact, rel=0.05)


def test_buying_elsewhere_is_compared_at_the_same_volume(tmp_path: Path) -> None:
    offer = {"model": "demo", "usd_per_input_mtok": 0.5, "usd_per_output_mtok": 1.0}
    plan = small.plan(tmp_path, {"elsewhere": [offer]})
    (one,) = elsewhere(plan, lambda text: None)
    (tokens,) = token_prices(plan)
    assert one.bought_usd_per_day == pytest.approx(0.5 * tokens.input_mtok_per_day + tokens.output_mtok_per_day)
    assert one.own_usd_per_day == tokens.usd_per_day
    assert one.mtok_per_day == pytest.approx(tokens.input_mtok_per_day + tokens.output_mtok_per_day)


@pytest.mark.parametrize(("ttft_s", "looked_for"), [(1.0, False), (1.95, True)])
def test_a_rate_that_leaves_time_for_the_network_is_not_looked_for_again(
    tmp_path: Path, ttft_s: float, looked_for: bool
) -> None:
    asked = []

    def rate(job: RateJob) -> GroupRate:
        asked.append(job)
        return replace(small.rate(job), ttft_s=ttft_s)

    found = found_rates(small.case(tmp_path), rate, PlanLimits(), lambda text: None)
    assert any(job.network_s for job in asked) is looked_for
    for (model, group, band, far), one in found.items():
        if far:
            assert one.per_replica <= found[model, group, band, False].per_replica


WEEK = {"region": "us-east-1", "hourly_requests_per_s": [1.0] * 84 + [5.0] * 84}
SHEETS: list[dict[str, Any]] = [
    {},
    {"prices": {"spot": {"max_share": 0.5}}},
    {"survive": {"any_one_region": True, "replica_failures": 1}},
    small.chat(residency=["eu-central-1"]),
    {"candidates": small.SHEET["candidates"][1:]},
    small.chat(rates=[WEEK]),
]


@pytest.mark.parametrize("sheet", SHEETS, ids=lambda sheet: ", ".join(sheet) or "plain")
def test_the_written_spec_follows_the_plan(tmp_path: Path, sheet: dict[str, Any]) -> None:
    plan = small.plan(tmp_path, sheet)
    text = written_spec(plan, tmp_path / "spec.yaml", tmp_path / "planned.yaml").text
    spec = parse_spec(text, folder=tmp_path)
    (model,) = spec.models
    for region in spec.regions:
        planned = [group for group in plan.groups if group.region == region.name]
        views = spec.groups_of(model, region)
        assert sum(view.replicas.max or 0 for view in views) >= max(
            (sum(group.count(hour) for group in planned) for hour in plan.hours), default=0
        )
        for view in views:
            pool = spec.pool_of(view, region)
            own = [group for group in planned if view.group.startswith(group.offer.group)]
            assert {pool.accelerator} == {group.offer.gpu for group in own}
            assert view.settings.max_model_len == own[0].offer.view.settings.max_model_len
            kinds = [kind for kind in own[0].replicas if (kind is PriceKind.SPOT) is pool.spot]
            counts = [sum(own[0].replicas[kind][hour] for kind in kinds) for hour in plan.hours]
            assert (view.replicas.min, view.replicas.max) == (min(counts), max(1, *counts))
            assert small.lowest(view.replicas.min, view.replicas.schedule, len(counts)) == counts
        used = {view.group for view in views}
        for lane, named in spec.lane_groups(model, region).items() if views else ():
            assert named, lane
            assert set(named) <= used


@pytest.mark.parametrize("costs", ["cheap.json", None])
def test_a_written_group_has_its_own_costs_and_not_those_of_another_gpu(tmp_path: Path, costs: str | None) -> None:
    """The spec's cost file is of the other group's GPU. Estimated costs are in no file."""
    scaling = {"policy": "backlog", "costs": "large.json", "forecast": "seasonal"}
    plan = small.plan(tmp_path, spec={"autoscaling": scaling})
    path = None if costs is None else str(tmp_path / costs)
    groups = tuple(
        replace(one, offer=replace(one.offer, costs_path=path)) if one.offer.group == "cheap" else one
        for one in plan.groups
    )
    text = written_spec(replace(plan, groups=groups), tmp_path / "spec.yaml", tmp_path / "planned.yaml").text
    spec = parse_spec(text, folder=tmp_path)
    found = {view.group.split("-")[0]: spec.costs_of(view) for view in spec.models[0].views}
    assert found == {"cheap": path, "large": str(tmp_path / "large.json")}
    assert {spec.autoscaling_of(view).forecast for view in spec.models[0].views} == {"seasonal"}


def test_a_group_on_two_gpus_keeps_its_settings_as_two_groups(tmp_path: Path) -> None:
    group = {"name": "cheap", "settings": {"max_num_seqs": 8}}
    model = small.SPEC["models"][0] | {"groups": [group], "autoscaling": {"policy": "backlog", "costs": "cheap.json"}}
    dear = {"name": "eu-central-1", "pools": [{"name": "a10g", "accelerator": "A10G", "nodes": 2, "gpus_per_node": 2}]}
    spec = {"models": [model], "regions": [small.SPEC["regions"][0], dear]}
    plan = small.plan(tmp_path, {"candidates": [], "gpu_prices": []}, spec=spec)
    text = written_spec(plan, tmp_path / "spec.yaml", tmp_path / "planned.yaml").text
    views = parse_spec(text, folder=tmp_path).models[0].views
    assert {view.settings.max_num_seqs for view in views} == {8}


def test_a_pool_holds_what_other_models_have_there_too(tmp_path: Path) -> None:
    other = small.SPEC["models"][0] | {"name": "other", "replicas": {"count": 1, "min": 1, "max": 4}}
    plan = small.plan(tmp_path, spec={"models": [other, small.SPEC["models"][0]]})
    text = written_spec(plan, tmp_path / "spec.yaml", tmp_path / "planned.yaml").text
    for region in parse_spec(text, folder=tmp_path).regions:
        own = [one for one in plan.groups if (one.region, one.offer.gpu) == (region.name, "L4")]
        assert region.pools[0].gpus >= 4 + max(sum(one.count(hour) for one in own) for hour in plan.hours)


def test_groups_of_several_sizes_share_a_new_pool(tmp_path: Path) -> None:
    candidates = [
        one | {"gpu": "A10G", "lanes": lanes, "settings": {**one.get("settings", {}), "tensor_parallel_size": gpus}}
        for one, gpus, lanes in zip(small.SHEET["candidates"], (1, 4), (["short"], ["medium", "long"]), strict=True)
    ]
    plan = small.plan(tmp_path, {"candidates": candidates, "gpu_prices": []})
    text = written_spec(plan, tmp_path / "spec.yaml", tmp_path / "planned.yaml").text
    assert parse_spec(text, folder=tmp_path).regions[0].pools[1].gpus_per_node >= 4


@pytest.mark.parametrize(("residency", "survived"), [(None, True), (["us-east-1"], False)])
def test_a_region_that_must_be_survived_and_cannot_is_said_first(
    tmp_path: Path, residency: list[str] | None, survived: bool
) -> None:
    plan = small.plan(tmp_path, {"survive": {"any_one_region": True}} | small.chat(residency=residency))
    found = PlanResult(replace(plan, groups=()))
    assert found.good is survived
    assert ("the loss of any one region is not survived" in found.headline) is not survived


def test_a_worksheet_that_no_group_can_serve_says_why(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match=r"^chat: all requests are longer than any group's context, 8,192 tokens"):
        small.case(tmp_path, small.chat(input_tokens={"mean": 9_000}))
    with pytest.raises(PlanError, match=r"^long: all requests are longer than any group's context, 8,192 tokens"):
        small.case(tmp_path, {"demand": [small.CHAT, small.CHAT | {"name": "long", "input_tokens": {"mean": 9_000}}]})
    case = small.case(tmp_path)
    none = {key: replace(rate, per_replica=0.0) for key, rate in small.rates(case).items()}
    with pytest.raises(PlanError, match=r"no group serves a single request .*: cheap \(L4\), large \(H100\)"):
        planned(case, none, 0.9, PlanLimits(), lambda text: None)
