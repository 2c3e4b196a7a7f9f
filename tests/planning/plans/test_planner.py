"""A worksheet through the simulator: rates, placement, check, and the correction of rates."""

from dataclasses import replace
from pathlib import Path

import pytest

from cluster.spec import parse_spec
from planning.capacity.judging import RateBound
from planning.capacity.rates import RateSearch
from planning.plans.answer import WorksheetPlan
from planning.plans.check import SloVerdict, checks_of, hours_to_check
from planning.plans.compare import side_by_side
from planning.plans.planner import PlanLimits, checked_plan, found_rates, planned
from planning.plans.question import rate_jobs
from planning.plans.rates import GroupRate, RateJob, RateSource, rates_in
from planning.plans.result import PlanResult
from planning.plans.spec_groups import lane_orders, spec_groups
from planning.plans.write_spec import written_spec
from tests.planning.plans import small

pytestmark = pytest.mark.whole
LIMITS = PlanLimits(gap=0.02, limit_s=300)
SEARCH = RateSearch(requests=150, max_requests=300, seeds=(0,), tolerance=0.1)
ONE_REGION = small.chat(rates=small.steadily(3.0))


def silent(text: str) -> None:
    """Reports nothing."""


def test_a_checked_plan_meets_its_slos(tmp_path: Path) -> None:
    plan, checks = checked_plan(small.case(tmp_path, ONE_REGION), RateSource(SEARCH), LIMITS, silent)
    result = PlanResult(plan, checks)
    assert result.good, result.headline
    checked = {(name, check.region) for check in checks for name in check.replicas}
    assert checked == {(group.offer.group, group.region) for group in plan.groups}
    for check in checks:
        counts = {group.offer.group: group.count(check.hour) for group in plan.groups if group.region == check.region}
        assert dict(check.replicas) == {name: count for name, count in counts.items() if count}
        for one in check.streams:
            assert sum(part.requests for part in one.parts) == one.requests
            assert one.in_time >= one.slo
            assert one.in_time_range[0] <= one.in_time <= one.in_time_range[1]
            assert one.requests > 100
    assert plan.savings


def test_rates_that_promise_too_much_are_lowered_until_the_simulation_holds(tmp_path: Path) -> None:
    case = small.case(tmp_path, ONE_REGION)
    exact = RateSource(SEARCH)

    def hopeful(job: RateJob) -> GroupRate:
        found = exact(job)
        return GroupRate(1.2 * found.per_replica, found.low, found.high, found.bound, found.ttft_s)

    plan, checks = checked_plan(case, hopeful, LIMITS, silent)
    assert PlanResult(plan, checks).verdict is not SloVerdict.MISSED
    assert any("rates were lowered by" in note for note in plan.notes) or plan.utilisation <= 0.9


def test_a_plan_with_too_few_replicas_is_said_to_miss(tmp_path: Path) -> None:
    case = small.case(tmp_path, small.chat(rates=small.steadily(40.0)))
    rates = {key: GroupRate(50.0, 50.0, 50.0, RateBound.TTFT, 1.0) for key in small.rates(case)}
    plan = planned(case, rates, 0.9, LIMITS, silent)
    checks = checks_of(plan, False, silent)
    assert PlanResult(plan, checks).verdict is SloVerdict.MISSED
    assert not PlanResult(plan, checks).good


def test_each_stream_is_simulated_in_an_hour_in_which_it_is_there(tmp_path: Path) -> None:
    night = small.CHAT | {
        "name": "night",
        "rates": [{"region": "us-east-1", "hourly_requests_per_s": [0.4] * 3 + [0.0] * 21}],
    }
    plan = small.plan(tmp_path, {"demand": [small.CHAT, night]})
    group = next(one for one in plan.groups if any(band.startswith("night") for band, _ in one.served))
    hours = hours_to_check(plan, [group])
    assert any(hour < 3 for hour in hours)
    assert group.pressure(hours[0]) == max(map(group.pressure, group.hours))


def test_hours_without_replicas_are_not_simulated(tmp_path: Path) -> None:
    """The solver's tolerance leaves a demand of next to nothing without a replica."""
    plan = small.plan(tmp_path)
    (group, *_) = plan.groups
    rare = {("rare", "us-east-1"): (1e-9,) + (0.0,) * 23}
    none_at_first = {kind: (0, *counts[1:]) for kind, counts in group.replicas.items()}
    changed = replace(group, replicas=none_at_first, served=rare, rates={})
    stream = replace(plan.case.bands[0].stream, name="rare")
    bands = (replace(plan.case.bands[0], name="rare", stream=stream),)
    case = replace(plan.case, bands=bands)
    assert hours_to_check(replace(plan, case=case), [changed]) == ()


def two_groups(folder: Path, cheap: float, large: float) -> WorksheetPlan:
    """All traffic from one region; rates that make the plan use both groups, or too few of one."""
    case = small.case(folder, small.chat(rates=small.steadily(12.0), residency=["us-east-1"]))
    each = {"cheap": cheap, "large": large}
    rates = {key: replace(small.rate(job), per_replica=each[key[1]]) for key, job in rate_jobs(case, {}).items()}
    return planned(case, rates, 0.9, LIMITS, silent)


def test_the_groups_of_a_region_are_simulated_together(tmp_path: Path) -> None:
    """The long prompts fit the large group alone; the short ones are served where the lanes send them."""
    plan = two_groups(tmp_path, 2.0, 4.0)
    assert {group.offer.group for group in plan.groups} == {"cheap", "large"}
    (check,) = checks_of(plan, False, silent)
    assert dict(check.replicas).keys() == {"cheap", "large"}
    (stream,) = check.streams
    parts = {part.group: part for part in stream.parts}
    assert parts["large"].requests >= 0.08 * stream.requests, "a tenth of the prompts has 3,000 tokens"
    assert parts["cheap"].requests > parts["large"].requests
    assert not check.late


def test_the_next_group_of_the_lane_helps_one_that_is_full(tmp_path: Path) -> None:
    """Half as many cheap replicas as the requests take: simulated alone they miss, together the large ones help."""
    plan = two_groups(tmp_path, 2.0, 4.0)
    (cheap,) = (group for group in plan.groups if group.offer.group == "cheap")
    (large,) = (group for group in plan.groups if group.offer.group == "large")
    few = replace(cheap, replicas=dict.fromkeys(cheap.replicas, (1,) * 24))
    (alone,) = checks_of(replace(plan, groups=(few,)), False, silent)
    (together,) = checks_of(replace(plan, groups=(few, large)), False, silent)
    assert alone.missed
    assert alone.late == {("demo", "cheap")}
    assert together.streams[0].in_time > alone.streams[0].in_time
    served = {part.group: part.requests for part in together.streams[0].parts}
    assert served["large"] > served["cheap"]


def test_the_simulation_has_the_lanes_of_the_written_spec(tmp_path: Path) -> None:
    plan = two_groups(tmp_path, 2.0, 4.0)
    orders = lane_orders(plan.case.spec, "demo", spec_groups(plan.groups), plan.case.bands)
    written = written_spec(plan, tmp_path / "spec.yaml", tmp_path / "planned.yaml")
    spec = parse_spec(written.text, folder=tmp_path)
    assert spec.lane_groups(spec.models[0]) == orders


def test_bands_that_are_alike_share_a_rate(tmp_path: Path) -> None:
    case = small.case(tmp_path, {"demand": [small.CHAT, small.CHAT | {"name": "twin"}]})
    asked: list[RateJob] = []

    def rate(job: RateJob) -> GroupRate:
        asked.append(job)
        return small.rate(job)

    found = found_rates(case, rate, PlanLimits(), silent)
    assert len(found) == 2 * len(found_rates(small.case(tmp_path), small.rate, PlanLimits(), silent))
    near = [job for job in asked if not job.network_s]
    assert len(near) == len({job.signature for job in near}) == sum(not key[3] for key in found) / 2


def test_rates_are_the_same_on_several_processes(tmp_path: Path) -> None:
    case = small.case(tmp_path)
    jobs = [RateJob(offer, case.bands[0]) for offer in case.serving(case.bands[0])]
    alone = rates_in(jobs, RateSource(SEARCH, memo=tmp_path / "rates"), 1, silent)
    assert rates_in(jobs, RateSource(SEARCH), 2, silent) == alone
    assert rates_in(jobs, RateSource(SEARCH, memo=tmp_path / "rates"), 1, silent) == alone


def test_gpu_types_are_compared_at_the_same_load_and_at_their_best(tmp_path: Path) -> None:
    plan = small.plan(tmp_path)
    cheap, large = side_by_side(plan, SEARCH, silent)
    assert cheap.same.per_s == large.same.per_s == min(cheap.best.per_s, large.best.per_s)
    assert large.best.per_s > cheap.best.per_s
    assert large.best.usd_per_mtok < large.same.usd_per_mtok
    assert large.same.ttft_p90_s < cheap.same.ttft_p90_s
