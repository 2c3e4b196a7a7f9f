"""A worksheet through the simulator: rates, placement, check, and the correction of rates."""

from pathlib import Path

import pytest

from planning.capacity.judging import RateBound
from planning.capacity.rates import RateSearch
from planning.plans.check import SloVerdict, checks_of, hours_to_check
from planning.plans.compare import side_by_side
from planning.plans.planner import PlanLimits, checked_plan, planned
from planning.plans.rates import GroupRate, RateJob, RateSource, rates_in
from planning.plans.result import PlanResult
from tests.planning.plans import small

pytestmark = pytest.mark.whole
LIMITS = PlanLimits(gap=0.02, limit_s=20)
SEARCH = RateSearch(requests=300, max_requests=600, seeds=(0,), tolerance=0.1)


def silent(text: str) -> None:
    """Reports nothing."""


def test_a_checked_plan_meets_its_slos(tmp_path: Path) -> None:
    plan, checks = checked_plan(small.case(tmp_path), RateSource(SEARCH), LIMITS, silent)
    result = PlanResult(plan, checks)
    assert result.good, result.headline
    checked = {(check.group.offer.group, check.group.region) for check in checks}
    assert checked == {(group.offer.group, group.region) for group in plan.groups}
    for check in checks:
        assert check.replicas == check.group.count(check.hour)
        for one in check.streams:
            assert one.in_time >= one.slo
            assert one.in_time_range[0] <= one.in_time <= one.in_time_range[1]
            assert one.requests > 100
    assert plan.savings


def test_rates_that_promise_too_much_are_lowered_until_the_simulation_holds(tmp_path: Path) -> None:
    case = small.case(tmp_path)
    exact = RateSource(SEARCH)

    def hopeful(job: RateJob) -> GroupRate:
        found = exact(job)
        return GroupRate(1.2 * found.per_replica, found.low, found.high, found.bound, found.ttft_s)

    plan, checks = checked_plan(case, hopeful, LIMITS, silent)
    assert PlanResult(plan, checks).verdict is not SloVerdict.MISSED
    assert any("rates were lowered by" in note for note in plan.notes) or plan.utilisation <= 0.9


def test_a_plan_with_too_few_replicas_is_said_to_miss(tmp_path: Path) -> None:
    busy = small.SHEET["demand"][0] | {"rates": [{"region": "us-east-1", "requests_per_s": 400.0}]}
    case = small.case(tmp_path, {"demand": [busy]})
    rates = {key: GroupRate(500.0, 500.0, 500.0, RateBound.TTFT, 1.0) for key in small.rates(case)}
    plan = planned(case, rates, 0.9, LIMITS, silent)
    checks = checks_of(plan, False, silent)
    assert PlanResult(plan, checks).verdict is SloVerdict.MISSED
    assert not PlanResult(plan, checks).good


def test_each_stream_is_simulated_in_an_hour_in_which_it_is_there(tmp_path: Path) -> None:
    night = small.SHEET["demand"][0] | {
        "name": "night",
        "rates": [{"region": "us-east-1", "hourly_requests_per_s": [0.4] * 3 + [0.0] * 21}],
    }
    plan = small.plan(tmp_path, {"demand": [small.SHEET["demand"][0], night]})
    group = next(one for one in plan.groups if any(band.startswith("night") for band, _ in one.served))
    hours = hours_to_check(plan, group)
    assert any(hour < 3 for hour in hours)
    assert group.pressure(hours[0]) == max(map(group.pressure, group.hours))


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
