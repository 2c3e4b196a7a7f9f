"""Who comes first among the promoted, the refused, the passed over and those who had their share; and what is forgotten
when."""

import dataclasses
from typing import Any

import pytest

from deployments.scheduling import (
    Capacity,
    Ending,
    LanePolicy,
    RejectCause,
    Scheduler,
    SchedulingPolicy,
    TenantPolicy,
)
from tests.deployments.scheduling.test_shares import ONE_AT_A_TIME, serve_all
from tests.deployments.scheduling.world import make_request, make_scheduler

ONE_LANE = SchedulingPolicy((LanePolicy("all", None, max_wait_s=1e6),), decode_weight=1.0)
TWO_LANES = SchedulingPolicy(
    (LanePolicy("short", 200, max_wait_s=1e6), LanePolicy("long", None, max_wait_s=1e6)), decode_weight=1.0
)


def served(scheduler: Scheduler, now: float = 0.0) -> list[str]:
    """The requests in the order in which they are placed, one after the other."""
    return [placement.request.request_id for placement in serve_all(scheduler, now)]


def refuse(scheduler: Scheduler, name: str, now: float = 0.0) -> None:
    """The replica refuses that request, which it runs."""
    (lease,) = [lease for lease, _ in scheduler.leases.values() if lease.request.request_id == name]
    scheduler.release(lease, Ending.REFUSED, None, now)


def test_the_promoted_are_served_in_the_order_of_their_promotion() -> None:
    """...which is not that of their arrival, where lanes promote after different waits."""
    policy = dataclasses.replace(
        TWO_LANES, lanes=(LanePolicy("short", 200, max_wait_s=10), LanePolicy("long", None, max_wait_s=40))
    )
    scheduler = make_scheduler(0, policy)
    for name, prompt, now in (
        ("long0", 900, 0.0),
        ("long1", 900, 1.0),
        ("short0", 90, 5.0),
        ("short1", 90, 20.0),
        ("long2", 900, 21.0),
    ):
        scheduler.submit(make_request(name, prompt, now=now), now)
    for now in (15.0, 30.0, 40.0, 41.0, 61.0):
        scheduler.step(now)
    assert scheduler.snapshot(61.0).lanes[2].waiting == 5
    scheduler.replica_up("r0", ONE_AT_A_TIME, 61.0)
    assert served(scheduler, 61.0) == ["short0", "short1", "long0", "long1", "long2"]


@pytest.mark.parametrize(
    ("policy", "others", "own"),
    [
        (ONE_LANE, {"prompt": 100, "tenant": "b"}, {"prompt": 400, "tenant": "a", "slo": 0.1}),
        (TWO_LANES, {"prompt": 100}, {"prompt": 390}),
    ],
    ids=["tenant", "lane"],
)
def test_who_had_its_share_does_not_come_back_as_if_it_had_not(
    policy: SchedulingPolicy, others: dict[str, Any], own: dict[str, Any]
) -> None:
    """...while another waits: what a tenant or a lane was served before it fell idle counts."""
    scheduler = make_scheduler(1, policy, ONE_AT_A_TIME)
    for number in range(4):
        scheduler.submit(make_request(f"b{number}", output=10, **others), 0.0)
    scheduler.submit(make_request("a0", output=10, **own), 0.0)
    order = []
    for _ in range(2):
        (placement,) = scheduler.step(0.0).placements
        order.append(placement.request.request_id)
        scheduler.release(placement.lease, Ending.FINISHED, None, 0.0)
    assert order == ["b0", "a0"]
    scheduler.submit(make_request("a1", output=10, **own), 0.0)
    assert served(scheduler) == ["b1", "b2", "b3", "a1"]


def test_a_lane_that_was_passed_over_for_long_claims_one_request_and_no_more() -> None:
    scheduler = make_scheduler(
        1, TWO_LANES, Capacity(sequences=3, ahead=0, kv_tokens=4_000, step_tokens=10**6, prefill_steps=2.0)
    )
    scheduler.submit(make_request("blocks", 2_000, 10), 0.0)
    (blocks,) = scheduler.step(0.0).placements
    for number in range(20):
        scheduler.submit(make_request(f"l{number}", 2_900, 10), 0.0)
    for number in range(600):
        scheduler.submit(make_request(f"s{number}", 90, 10), 0.0)
    passed = 0
    while passed < 400:
        for placement in scheduler.step(0.0).placements:
            assert placement.lane == "short", "long ones do not fit"
            passed += 1
            scheduler.release(placement.lease, Ending.FINISHED, None, 0.0)
    scheduler.release(blocks.lease, Ending.FINISHED, None, 0.0)
    scheduler.replica_up("r0", ONE_AT_A_TIME, 0.0)
    lanes = [placement.lane for placement in serve_all(scheduler)]
    assert lanes.index("short") == 2, (
        "of 40,000 tokens that it was behind it claims one request; the second is its turn"
    )


@pytest.mark.parametrize(
    ("after", "expected"),
    [
        ("at once", "a0 b0 hasty a1 b1 a2 b2"),
        ("a reload", "a0 b0 hasty a1 b1 a2 b2"),
        ("promotion", "a0 b0 hasty b1 a1 b2 a2"),  # of the two that came first, which count in their lane, too
    ],
)
def test_a_refused_request_is_first_again_and_its_tenant_charged_once(after: str, expected: str) -> None:
    """Two tenants take turns with requests of one size: refusals of one request cost its tenant no turn."""
    policy = SchedulingPolicy((LanePolicy("all", None, max_wait_s=50),), decode_weight=1.0)
    scheduler = make_scheduler(1, policy, ONE_AT_A_TIME)
    for number in range(3):
        for tenant in "ab":
            scheduler.submit(
                make_request(f"{tenant}{number}", 90, 10, tenant=tenant, now=number, slo=9.0), float(number)
            )
    for _ in range(10):
        assert scheduler.step(3.0).placements[0].request.request_id == "a0"
        refuse(scheduler, "a0", 3.0)
    scheduler.submit(make_request("hasty", 90, 10, tenant="c", now=3.0, slo=0.1), 3.0)
    if after == "a reload":
        scheduler.configure(policy, 3.0)
    order = served(scheduler, 50.0 if after == "promotion" else 3.0)
    assert order == expected.split()


def test_a_full_lane_takes_from_who_holds_less_than_its_share_and_from_nobody_else() -> None:
    policy = dataclasses.replace(ONE_LANE, max_waiting=40, tenants={"a": TenantPolicy(3.0)})
    scheduler = make_scheduler(0, policy)
    for number in range(40):
        assert scheduler.submit(make_request(f"b{number}", tenant="b"), 0.0).accepted
    assert scheduler.submit(make_request("b40", tenant="b"), 0.0).cause is RejectCause.MODEL_FULL, (
        "it has all that waits"
    )
    taken = 0
    while scheduler.submit(make_request(f"a{taken}", tenant="a"), 0.0).accepted:
        taken += 1
    assert taken == 30, "3 of 4 parts of 40"
