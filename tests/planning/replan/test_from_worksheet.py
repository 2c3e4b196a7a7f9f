"""The basis of re-plans: the spec's own groups, at the planner's rates, within the spec's bounds and lists."""

from pathlib import Path
from typing import Any

import pytest

from planning.capacity.judging import RateBound
from planning.capacity.problem import PriceKind, Quota
from planning.plans.planner import case_from
from planning.plans.question import rate_jobs
from planning.plans.rates import GroupRate, RateJob
from planning.replan import ReplanSettings, ReplanState, SiteKey, replan
from planning.replan.from_worksheet import ReplanCase, case_with_rates, prices_now
from planning.worksheet import load_worksheet
from tests.planning.plans import small
from tests.planning.replan.cases import observed

GROUPS: dict[str, Any] = {
    **small.SPEC["models"][0],
    "residency": ["us-east-1", "eu-central-1"],
    "autoscaling": {"policy": "backlog", "costs": "cheap.json"},
    "groups": [
        {"name": "plain", "replicas": {"count": 1, "min": 0, "max": 3}},
        {"name": "spot", "pool": "spot", "regions": ["eu-central-1"], "replicas": {"count": 2, "min": 1, "max": 9}},
    ],
}
REGIONS: list[dict[str, Any]] = [
    small.SPEC["regions"][0],
    {
        "name": "eu-central-1",
        "pools": [
            *small.SPEC["regions"][1]["pools"],
            {"name": "spot", "accelerator": "L4", "nodes": 3, "gpus_per_node": 2, "spot": True},
        ],
    },
]
SPEC: dict[str, Any] = {
    "models": [GROUPS],
    "regions": REGIONS,
    "tenants": [{"name": "clinic", "keys": ["sha256:" + "0" * 64], "residency": ["eu-central-1"]}],
}


def _rate(job: RateJob) -> GroupRate:
    return GroupRate(2.0, 1.8, 2.2, RateBound.TTFT, 1.0)


def _case(folder: Path, **stream: Any) -> ReplanCase:
    demand = [small.SHEET["demand"][0] | stream]
    sheet, spec = load_worksheet(small.write(folder, {"demand": demand, "survive": {"any_one_region": True}}, SPEC))
    case = case_from(sheet.model_copy(update={"candidates": ()}), spec)
    return case_with_rates(case, {key: _rate(job) for key, job in rate_jobs(case, {}).items()})


def test_the_sites_are_the_specs_groups_on_their_pools_within_its_bounds(tmp_path: Path) -> None:
    basis = _case(tmp_path).basis
    found = {key: (low, high) for key, low, high in zip(basis.sites, basis.minimums, basis.maximums, strict=True)}
    assert found == {
        SiteKey("us-east-1", "demo@plain"): (0, 3),
        SiteKey("eu-central-1", "demo@plain"): (0, 3),
        SiteKey("eu-central-1", "demo@spot"): (1, 6),
    }
    assert Quota("eu-central-1", "L4", 6, PriceKind.SPOT) in basis.problem.quotas
    assert Quota("us-east-1", "L4", 4, PriceKind.ON_DEMAND) in basis.problem.quotas
    assert basis.usd_per_hour[SiteKey("eu-central-1", "demo@spot")] == pytest.approx(0.5)
    assert basis.usd_per_hour[SiteKey("eu-central-1", "demo@plain")] == pytest.approx(1.0)
    assert basis.problem.limits.survive_region
    assert basis.peaks["demo", "us-east-1"] == pytest.approx(4.0)
    assert basis.peaks["demo", ""] == pytest.approx(5.0)


def test_all_lists_that_name_regions_narrow_where_a_band_may_be_served(tmp_path: Path) -> None:
    assert {lane.regions for lane in _case(tmp_path).basis.problem.lanes} == {frozenset({"us-east-1", "eu-central-1"})}
    narrow = _case(tmp_path, tenants=["clinic"], rates=[{"region": "eu-central-1", "requests_per_s": 1.0}])
    assert {lane.regions for lane in narrow.basis.problem.lanes} == {frozenset({"eu-central-1"})}


def test_changed_prices_are_read_for_the_same_sites(tmp_path: Path) -> None:
    case = _case(tmp_path)
    dearer = [{"gpu": "L4", "region": "eu-central-1", "spot_usd_per_gpu_hour": 7.0}]
    sheet, spec = load_worksheet(small.write(tmp_path, {"gpu_prices": dearer}, SPEC))
    assert prices_now(case.basis, sheet, spec)[SiteKey("eu-central-1", "demo@spot")] == pytest.approx(7.0)


def test_a_worksheets_basis_can_be_replanned(tmp_path: Path) -> None:
    case = _case(tmp_path)
    seen = observed({}, dict.fromkeys(case.basis.sites, 1))
    demand = {(band.title, "us-east-1"): 0.5 for band in case.planned.bands}
    plan = replan(case.basis, ReplanSettings(), ReplanState(), type(seen)(0.0, demand, seen.states))
    assert {one.site for one in plan.bounds} == set(case.basis.sites)
    assert not plan.unserved
