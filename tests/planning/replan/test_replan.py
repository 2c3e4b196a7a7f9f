"""Re-plans of one model in two or three regions, by hand."""

from dataclasses import replace

import pytest

from planning.capacity.problem import LaneDemand, Limits, PriceKind, Problem, Quota
from planning.replan import (
    HeldBack,
    Observed,
    ReplanBasis,
    ReplanReason,
    ReplanSettings,
    ReplanState,
    SiteState,
    replan,
)
from planning.replan.result import PlanCoverage
from tests.planning.replan.cases import LANE, Cluster, basis, floors, key, observed, site, targets

AT_ONCE = ReplanSettings(step=50, hold_s=0.0)
ALIKE = {"a": 1.0, "b": 1.0}


def test_the_first_plan_begins_with_what_runs_and_keeps_it_where_nothing_is_better() -> None:
    plan = Cluster(basis(ALIKE), {key("a"): 3, key("b"): 2}).replan({"a": 3.0, "b": 2.0})
    assert floors(plan) == targets(plan) == {"a": 3, "b": 2}
    assert {one.reason for one in plan.bounds} == {ReplanReason.FIRST}
    assert plan.coverage is PlanCoverage.ALL
    assert plan.usd_after == plan.usd_before == pytest.approx(5.0)


def test_each_region_serves_its_own_demand_where_prices_are_alike() -> None:
    plan = Cluster(basis(ALIKE), {key("a"): 0, key("b"): 0}, AT_ONCE).replan({"a": 4.0, "b": 1.0})
    assert targets(plan) == {"a": 4, "b": 1}
    assert plan.served == pytest.approx({(LANE, "a", key("a")): 4.0, (LANE, "b", key("b")): 1.0})


def test_a_price_that_is_lower_by_more_than_the_margin_moves_replicas() -> None:
    cluster = Cluster(basis(ALIKE), {key("a"): 4, key("b"): 0}, AT_ONCE)
    cluster.replan({"a": 4.0})
    assert targets(cluster.replan({"a": 4.0}, usd={key("b"): 0.9})) == {"a": 4, "b": 0}
    plan = cluster.replan({"a": 4.0}, usd={key("b"): 0.7})
    assert targets(plan) == {"a": 0, "b": 4}
    assert {one.reason for one in plan.bounds} == {ReplanReason.PRICE}
    assert plan.usd_target == pytest.approx(4 * 0.7)


def test_what_moves_is_started_before_its_predecessor_ends() -> None:
    cluster = Cluster(basis(ALIKE), {key("a"): 4, key("b"): 0}, replace(AT_ONCE, step=2))
    cluster.replan({"a": 4.0})
    dear = {key("b"): 0.5}
    moving = cluster.replan({"a": 4.0}, usd=dear, delay=True)
    assert floors(moving) == {"a": 4, "b": 2}
    assert {one.held for one in moving.bounds} == {HeldBack.NOT_READY, HeldBack.STEP}
    assert floors(cluster.replan({"a": 4.0}, usd=dear)) == {"a": 4, "b": 4}
    assert floors(cluster.replan({"a": 4.0}, usd=dear)) == {"a": 2, "b": 4}
    last = cluster.replan({"a": 4.0}, usd=dear)
    assert floors(last) == {"a": 0, "b": 4}
    assert {one.held for one in last.bounds} == {None}
    assert [one.reason for one in last.bounds] == [ReplanReason.PRICE, ReplanReason.STEADY]


def test_more_demand_is_covered_at_once_and_less_of_it_only_after_a_while() -> None:
    cluster = Cluster(basis(ALIKE), {key("a"): 2, key("b"): 0}, ReplanSettings(step=1, hold_s=900.0))
    cluster.replan({"a": 2.0})
    plan = cluster.replan({"a": 9.0})
    assert floors(plan)["a"] == 9
    assert next(one for one in plan.bounds if one.site == key("a")).reason is ReplanReason.DEMAND
    fallen = [floors(cluster.replan({"a": 2.0}))["a"] for _ in range(6)]
    assert fallen[:3] == [9, 9, 9]
    assert fallen[3:] == [6, 4, 3]


def test_floors_survive_the_loss_of_a_region() -> None:
    cluster = Cluster(basis({"a": 1.0, "b": 1.0, "c": 1.0}, survive=True), {key(r): 2 for r in "abc"}, AT_ONCE)
    cluster.replan({"a": 1.0, "b": 1.0, "c": 1.0})
    plan = cluster.replan({"a": 2.0, "b": 2.0, "c": 2.0})
    assert sum(floors(plan).values()) - max(floors(plan).values()) >= 6
    assert {one.reason for one in plan.bounds} == {ReplanReason.LOSS}


def test_the_loss_need_not_be_survived_far_from_the_peak() -> None:
    of = basis(ALIKE, survive=True, peaks={("m", ""): 10.0, ("m", "a"): 10.0})
    plan = Cluster(of, {key("a"): 4, key("b"): 0}, AT_ONCE).replan({"a": 4.0})
    assert targets(plan) == {"a": 4, "b": 0}
    plan = Cluster(of, {key("a"): 4, key("b"): 0}, AT_ONCE).replan({"a": 10.0})
    assert targets(plan) == {"a": 10, "b": 10}


def test_capacity_that_cannot_be_had_is_planned_elsewhere_and_tried_again() -> None:
    cheap = basis({"a": 0.5, "b": 1.0})
    cluster = Cluster(cheap, {key("a"): 4, key("b"): 0}, replace(AT_ONCE, retry_s=600.0))
    cluster.replan({"a": 4.0})
    plan = cluster.replan({"a": 8.0}, room={key("a"): 4})
    assert targets(plan) == {"a": 4, "b": 4}
    by_key = {one.site: one for one in plan.bounds}
    assert by_key[key("b")].reason is ReplanReason.ROOM
    assert by_key[key("a")].ceiling == 4
    assert targets(cluster.replan({"a": 8.0})) == {"a": 4, "b": 4}
    again = cluster.replan({"a": 8.0})
    assert targets(again) == {"a": 8, "b": 0}
    failed = cluster.replan({"a": 8.0}, room={key("a"): 4})
    assert targets(failed) == {"a": 4, "b": 4}
    assert {one.reason for one in failed.bounds} == {ReplanReason.ROOM}, "where less is asked for, too"
    assert failed.state.scarce[key("a")].wait_s == 1_200.0


def test_a_lost_regions_demand_is_carried_by_the_others_as_far_as_it_does_not_come_there() -> None:
    cluster = Cluster(basis({"a": 1.0, "b": 1.0, "c": 1.0}), {key(r): 3 for r in "abc"}, AT_ONCE)
    cluster.replan({"a": 3.0, "b": 3.0, "c": 3.0})
    plan = cluster.replan({"b": 3.0, "c": 3.0}, lost=frozenset("a"))
    assert set(floors(plan)) == {"b", "c"}
    assert sum(floors(plan).values()) == 9
    assert ReplanReason.REGION_LOST in {one.reason for one in plan.bounds}
    moved = cluster.replan({"b": 6.0, "c": 3.0}, lost=frozenset("a"))
    assert sum(targets(moved).values()) == 9
    back = cluster.replan({"a": 3.0, "b": 3.0, "c": 3.0})
    assert set(floors(back)) == {"a", "b", "c"}


def test_a_region_that_was_lost_from_the_start_counts_with_what_the_worksheet_has() -> None:
    of, seen = basis(ALIKE), observed({"b": 3.0}, {key("b"): 3}, lost=frozenset("a"))
    knows = ReplanState(before_loss={(LANE, "a"): 2.0, (LANE, "b"): 3.0})
    assert targets(replan(of, AT_ONCE, ReplanState(), seen)) == {"b": 3}
    assert targets(replan(of, AT_ONCE, knows, seen)) == {"b": 5}


def test_missing_replicas_are_named_and_nothing_is_lowered() -> None:
    cluster = Cluster(basis(ALIKE, highest=3), {key("a"): 3, key("b"): 3}, AT_ONCE)
    plan = cluster.replan({"a": 10.0})
    assert plan.coverage is PlanCoverage.NOT_ALL
    assert sum(plan.short.values()) == pytest.approx(4.0)
    assert floors(plan) == {"a": 3, "b": 3}


def test_demand_that_may_be_served_nowhere_is_named() -> None:
    of = basis(ALIKE, residency=frozenset({"a"}))
    cluster = Cluster(of, {key("a"): 2, key("b"): 0}, AT_ONCE)
    cluster.replan({"a": 2.0})
    plan = cluster.replan({}, lost=frozenset("a"))
    assert plan.unserved == ((LANE, "a"),)
    assert targets(plan) == {"b": 0}


def test_floors_and_ceilings_stay_within_a_quota() -> None:
    quotas = (Quota("a", "L4", 5), Quota("b", "L4", 6))
    plan = Cluster(basis(ALIKE, quotas=quotas), {key("a"): 2, key("b"): 2}, AT_ONCE).replan({"a": 8.0})
    assert targets(plan) == {"a": 5, "b": 3}
    assert {one.site.region: one.ceiling for one in plan.bounds} == {"a": 5, "b": 4}


def test_a_quota_that_leaves_no_room_for_both_makes_a_move_wait() -> None:
    lanes = (LaneDemand("all", "m", {"a": (0.0,)}),)
    sites = tuple(site("a", usd, group=group) for group, usd in (("dear", 2.0), ("cheap", 1.0)))
    keys = (key("a", "m@dear"), key("a", "m@cheap"))
    of = ReplanBasis(Problem(lanes, sites, quotas=(Quota("a", "L4", 4),)), keys, (0, 0), (9, 9))
    cluster = Cluster(of, {keys[0]: 4, keys[1]: 0}, AT_ONCE)
    plan = cluster.replan({"a": 4.0})
    assert {one.site.group: one.floor for one in plan.bounds} == {"m@dear": 4, "m@cheap": 0}
    assert {one.held for one in plan.bounds} == {HeldBack.QUOTA, HeldBack.NOT_READY}


def test_a_model_keeps_the_specs_minimum() -> None:
    plan = Cluster(basis(ALIKE, lowest=2), {key("a"): 2, key("b"): 2}, AT_ONCE).replan({"a": 1.0})
    assert targets(plan) == {"a": 2, "b": 2}


def test_the_same_inputs_give_the_same_plan() -> None:
    of, seen = basis({"a": 1.0, "b": 1.3, "c": 0.9}, survive=True), {key(r): 2 for r in "abc"}
    args = of, ReplanSettings(), ReplanState(), observed({"a": 4.0, "b": 1.5}, seen)
    assert replan(*args) == replan(*args)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"minimums": (5, 0), "maximums": (4, 9)}, "minimum = 5, maximum = 4"),
        ({"sites": (key("a"), key("a"))}, "each named once"),
        ({"sites": (key("b"), key("a"))}, "allowed: the same region"),
    ],
)
def test_a_basis_that_contradicts_itself_is_refused(change: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(basis(ALIKE), **change)


def test_a_site_with_two_price_kinds_is_refused() -> None:
    both = replace(site("a", 1.0), prices={PriceKind.SPOT: 1.0, PriceKind.ON_DEMAND: 2.0})
    with pytest.raises(ValueError, match="the one kind"):
        ReplanBasis(Problem((LaneDemand("all", "m", {}),), (both,), limits=Limits()), (key("a"),), (0,), (1,))


def test_impossible_observations_and_settings_are_refused() -> None:
    with pytest.raises(ValueError, match=r"demand of m: all, a = -1.0; allowed"):
        Observed(0.0, {(LANE, "a"): -1.0}, {key("a"): SiteState(1, 1)})
    with pytest.raises(ValueError, match="margin = -1"):
        ReplanSettings(margin=-1)
    with pytest.raises(ValueError, match="step = 0"):
        ReplanSettings(step=0)
    with pytest.raises(ValueError, match="retry_s = 9000"):
        ReplanSettings(retry_s=9_000.0)
