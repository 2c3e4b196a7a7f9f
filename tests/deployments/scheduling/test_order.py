"""Who comes first among the promoted, the refused, the passed over and those who had their share; and what is forgotten
when."""

import dataclasses

import pytest

from deployments.scheduling import (
    Capacity,
    Ending,
    LanePolicy,
    PickReason,
    RejectCause,
    Scheduler,
    SchedulingPolicy,
    TenantPolicy,
)
from tests.deployments.scheduling.test_shares import ONE_AT_A_TIME, serve_all
from tests.deployments.scheduling.world import POLICY, make_request, make_scheduler

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


def test_a_tenant_that_had_its_share_does_not_come_back_as_if_it_had_not() -> None:
    """...while another waits: what it was served before it fell idle counts."""
    scheduler = make_scheduler(1, ONE_LANE, ONE_AT_A_TIME)
    for number in range(4):
        scheduler.submit(make_request(f"b{number}", 100, 10, tenant="b"), 0.0)
    scheduler.submit(make_request("a0", 400, 10, tenant="a", slo=0.1), 0.0)
    order = []
    for _ in range(2):
        (placement,) = scheduler.step(0.0).placements
        order.append(placement.request.request_id)
        scheduler.release(placement.lease, Ending.FINISHED, None, 0.0)
    assert order == ["b0", "a0"]
    scheduler.submit(make_request("a1", 100, 10, tenant="a", slo=0.1), 0.0)
    assert served(scheduler) == ["b1", "b2", "b3", "a1"]


def test_a_lane_that_had_its_share_does_not_come_back_as_if_it_had_not() -> None:
    scheduler = make_scheduler(1, TWO_LANES, ONE_AT_A_TIME)
    for number in range(4):
        scheduler.submit(make_request(f"s{number}", 100, 10), 0.0)
    scheduler.submit(make_request("l0", 390, 10), 0.0)
    order = []
    for _ in range(2):
        (placement,) = scheduler.step(0.0).placements
        order.append(placement.request.request_id)
        scheduler.release(placement.lease, Ending.FINISHED, None, 0.0)
    assert order == ["s0", "l0"]
    scheduler.submit(make_request("l1", 390, 10), 0.0)
    assert served(scheduler) == ["s1", "s2", "s3", "l1"]


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


def test_a_refused_request_is_charged_to_its_lane_once() -> None:
    scheduler = make_scheduler(1, TWO_LANES, ONE_AT_A_TIME)
    for number in range(14):
        scheduler.submit(make_request(f"s{number}", 90, 10), 0.0)
    for number in range(3):
        scheduler.submit(make_request(f"l{number}", 890, 10), 0.0)
    assert scheduler.step(0.0).placements[0].request.request_id == "s0"
    refuse(scheduler, "s0")
    order = served(scheduler)
    # The short ones were charged 100 when `s0` was placed: it is the turn of the long, for 900, and then theirs until
    # they have had more than that.
    assert order[:12] == ["l0", "s0", *(f"s{number}" for number in range(1, 10)), "l1"]


def test_kv_is_booked_for_the_prompt_and_the_output_of_all_sequences() -> None:
    scheduler = make_scheduler(1)
    scheduler.submit(make_request("q0", 100, 50, sequences=3), 0.0)
    (placement,) = scheduler.step(0.0).placements
    assert placement.lease.kv_tokens == 3 * (100 + 50)
    assert scheduler.snapshot(0.0).replicas[0].kv_tokens == 450


def test_what_a_lost_replica_had_cached_is_gone() -> None:
    scheduler = make_scheduler(
        2, POLICY, Capacity(sequences=8, ahead=0, kv_tokens=10_000, step_tokens=10_000, prefill_steps=2.0)
    )
    prefix = (1, 2, 3, 4, 5)
    scheduler.submit(make_request("q0", 400, 10, prefix=prefix), 0.0)
    (placement,) = scheduler.step(0.0).placements
    scheduler.submit(make_request("q1", 400, 10, prefix=prefix), 0.0)
    (warm,) = scheduler.step(0.0).placements
    assert (warm.replica_id, warm.reason, warm.lease.prefill_tokens) == (
        placement.replica_id,
        PickReason.CACHED_PREFIX,
        400 - 5 * 64,
    )
    scheduler.replica_lost(placement.replica_id, 0.0)
    scheduler.replica_up(placement.replica_id, Capacity(8, 0, 10_000, 10_000, prefill_steps=2.0), 0.0)
    scheduler.submit(make_request("q2", 400, 10, prefix=prefix), 0.0)
    (cold,) = scheduler.step(0.0).placements
    assert cold.reason is not PickReason.CACHED_PREFIX
    assert cold.lease.prefill_tokens == 400


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


def test_a_lane_full_of_work_is_shared_by_weight() -> None:
    policy = SchedulingPolicy(
        (LanePolicy("all", None, max_wait_s=1e6, cap_s=10.0),), decode_weight=1.0, max_waiting=10**6
    )
    scheduler = make_scheduler(1, policy, ONE_AT_A_TIME)
    for number in range(20):  # 100 tokens of work a second
        scheduler.submit(make_request(f"warm{number}", 90, 10, now=number, patience=1e6), float(number))
        for lease, _ in list(scheduler.leases.values()):
            scheduler.release(lease, Ending.FINISHED, None, float(number))
        scheduler.step(float(number))
    rate = scheduler.rate.per_s
    assert rate is not None
    waiting = scheduler.snapshot(20.0).lanes[0].work_tokens
    flood = 0
    while scheduler.submit(make_request(f"flood{flood}", 90, 10, now=20.0, tenant="flood"), 20.0).accepted:
        flood += 1
    assert flood * 100 + waiting <= 10.0 * rate < (flood + 1) * 100 + waiting
    calm = 0
    while (admission := scheduler.submit(make_request(f"calm{calm}", 90, 10, now=20.0, tenant="calm"), 20.0)).accepted:
        calm += 1
    assert admission.cause is RejectCause.LANE_FULL
    assert calm * 100 <= 5.0 * rate < (calm + 1) * 100, "half of the lane is its"


@pytest.mark.parametrize("ending", [Ending.FINISHED, Ending.CANCELLED, Ending.FAILED])
def test_an_id_is_free_again_when_its_lease_ended_and_not_before(ending: Ending) -> None:
    scheduler = make_scheduler(1)
    assert scheduler.submit(make_request("q0"), 0.0).accepted
    (placement,) = scheduler.step(0.0).placements
    assert scheduler.submit(make_request("q0"), 0.0).cause is RejectCause.DUPLICATE_ID
    scheduler.release(placement.lease, ending, None, 0.0)
    assert scheduler.submit(make_request("q0"), 0.0).accepted


def test_the_ids_of_a_lost_replicas_leases_are_free_again() -> None:
    scheduler = make_scheduler(2)
    scheduler.submit(make_request("q0"), 0.0)
    (placement,) = scheduler.step(0.0).placements
    scheduler.replica_lost(placement.replica_id, 0.0)
    assert scheduler.submit(make_request("q0"), 0.0).accepted
