"""Lanes are reloaded while requests wait: what was counted and promised stays with the lane that it belongs to, by
name."""

import dataclasses
from collections.abc import Iterator

import pytest

from deployments.scheduling import (
    Ending,
    LanePolicy,
    Lease,
    Order,
    Placement,
    Scheduler,
    SchedulingPolicy,
    TenantPolicy,
    Usage,
)
from deployments.scheduling.lanes import PROMOTED
from tests.deployments.scheduling.world import ONE_AT_A_TIME, make_request, make_scheduler

SHORT, LONG = LanePolicy("short", 200, weight=4, max_wait_s=1e6), LanePolicy("long", None, max_wait_s=1e6)
TWO = SchedulingPolicy((SHORT, LONG), decode_weight=1.0)
RENAMED = SchedulingPolicy(
    (LanePolicy("tiny", 20, max_wait_s=1e6), LanePolicy("quick", 200, weight=4, max_wait_s=1e6), LONG),
    decode_weight=1.0,
)


def serve(scheduler: Scheduler, now: float) -> Iterator[Placement]:
    """Places and finishes one request after the other, each in a tenth of a second."""
    while placements := scheduler.step(now).placements:
        for placement in placements:
            yield placement
            scheduler.first_token(placement.lease, now)
            now += 0.1
            scheduler.release(placement.lease, Ending.FINISHED, None, now)


def crowded(number: int) -> tuple[Scheduler, Lease]:
    """So many requests for the lane `short`, the first of which is placed."""
    scheduler = make_scheduler(1, TWO, ONE_AT_A_TIME)
    for index in range(number):
        scheduler.submit(make_request(f"q{index}", prompt=100, output=10), 0.0)
        if not index:
            scheduler.step(0.0)
    (lease, _), *_ = scheduler.leases.values()
    return scheduler, lease


@pytest.mark.parametrize(
    "policy",
    [
        RENAMED,
        SchedulingPolicy((LONG,)),
        dataclasses.replace(TWO, lanes=(dataclasses.replace(SHORT, up_to_tokens=5), LONG)),
    ],
)
def test_promises_of_a_lane_that_a_reload_takes_away_are_settled_where_they_were_given(
    policy: SchedulingPolicy,
) -> None:
    scheduler, lease = crowded(60)
    scheduler.configure(policy, 0.5)
    scheduler.release(lease, Ending.FINISHED, None, 1.0)
    assert len(list(serve(scheduler, 1.0))) == 59
    assert all(eta.open == 0 for eta in scheduler.forecasts.etas.values())
    assert scheduler.snapshot(60.0).placed == 60


def test_flows_keep_the_names_of_their_lanes_when_another_is_put_in_front() -> None:
    scheduler, lease = crowded(3)
    scheduler.submit(make_request("large", prompt=900, output=10), 0.0)
    before = {flow.lane: (flow.arrived, flow.prompt_tokens) for flow in scheduler.snapshot(0.0).flows}
    scheduler.configure(dataclasses.replace(TWO, lanes=(LanePolicy("tiny", 20, max_wait_s=1e6), SHORT, LONG)), 0.5)
    assert (
        {flow.lane: (flow.arrived, flow.prompt_tokens) for flow in scheduler.snapshot(0.5).flows}
        == before
        == {"short": (3, 300), "long": (1, 900)}
    )
    scheduler.first_token(lease, 0.6)
    scheduler.release(lease, Ending.FINISHED, None, 0.7)
    list(serve(scheduler, 0.7))
    assert {flow.lane: flow.met for flow in scheduler.snapshot(2.0).flows} == {"short": 3, "long": 1}


def test_what_came_to_a_lane_that_a_reload_takes_away_stays_counted() -> None:
    scheduler, _ = crowded(3)
    before = scheduler.snapshot(0.0).flows
    scheduler.configure(RENAMED, 0.5)
    assert scheduler.snapshot(0.5).flows == before, "whoever takes differences would take all else for new"


def test_a_lease_from_before_a_reload_counts_for_the_lane_that_it_waited_in() -> None:
    scheduler, lease = crowded(1)
    scheduler.configure(RENAMED, 0.5)
    scheduler.release(lease, Ending.FINISHED, Usage(100, 0, 10, 0), 1.0)
    assert scheduler.snapshot(1.0).other_lane == 0.0, "100 + 10 tokens belong to one lane before and after"


def test_an_adopted_lease_belongs_to_a_lane_of_this_policy_whatever_its_owner_called_it() -> None:
    _, lease = crowded(1)
    assert lease.home == 0
    adopted = make_scheduler(1, RENAMED, ONE_AT_A_TIME).adopt(lease, False, 0.5)
    assert adopted is not None
    assert RENAMED.lanes[adopted.home].name == "quick"


def test_the_shortest_comes_first_again_when_its_order_comes_back() -> None:
    scheduler = make_scheduler(0, SchedulingPolicy((LONG,)))
    for name, prompt in (("long", 900), ("short", 10), ("middle", 400)):
        scheduler.submit(make_request(name, prompt), 0.0)
    scheduler.configure(SchedulingPolicy((LONG,), order=Order.ARRIVAL), 0.1)
    assert [job.request.request_id for job in (scheduler.lanes.lanes[0].head(),) if job] == ["long"]
    scheduler.configure(SchedulingPolicy((LONG,)), 0.2)
    scheduler.replica_up("r0", ONE_AT_A_TIME, 0.5)
    assert [placement.request.request_id for placement in serve(scheduler, 0.5)] == ["short", "middle", "long"]


def test_refused_requests_stay_first_through_a_reload() -> None:
    scheduler, lease = crowded(5)
    scheduler.release(lease, Ending.REFUSED, None, 0.1)
    scheduler.submit(make_request("urgent", slo=0.5), 0.1)
    scheduler.configure(RENAMED, 0.2)
    assert [placement.request.request_id for placement in serve(scheduler, 0.3)][:2] == ["q0", "urgent"]


def test_the_promoted_share_by_the_new_weights_of_their_tenants() -> None:
    policy = SchedulingPolicy((LanePolicy("all", None, max_wait_s=1.0),), decode_weight=1.0)
    scheduler = make_scheduler(0, policy)
    for index in range(40):
        scheduler.submit(make_request(f"{'ab'[index % 2]}{index}", tenant="ab"[index % 2]), 0.0)
    scheduler.step(1.0)
    assert {lane.name: lane.waiting for lane in scheduler.snapshot(1.0).lanes} == {"all": 0, PROMOTED: 40}
    scheduler.configure(dataclasses.replace(policy, tenants={"a": TenantPolicy(3.0)}), 1.0)
    scheduler.replica_up("r0", ONE_AT_A_TIME, 1.0)
    first = [placement.request.tenant for placement in serve(scheduler, 1.0)][:16]
    assert 11 <= first.count("a") <= 13


def test_a_reload_ends_what_was_held() -> None:
    """A hold is for a lane of the policy that was: its replica is open to all again."""
    policy = SchedulingPolicy(
        (LanePolicy("short", 500, weight=100, max_wait_s=1e6), LanePolicy("long", None, max_wait_s=1))
    )
    scheduler = make_scheduler(1, policy)
    scheduler.submit(make_request("s0", prompt=200, output=50), 0.0)
    scheduler.step(0.0)
    scheduler.submit(make_request("large", prompt=3_900, output=50), 0.0)
    scheduler.step(1.0)
    assert scheduler.snapshot(1.0).replicas[0].held_by == PROMOTED
    scheduler.configure(policy, 1.0)
    assert scheduler.snapshot(1.0).replicas[0].held_by is None
    assert scheduler.fleet.reserved == 0
