"""The bound on the wait of the promoted, as lanes.py states it: in work and in time, on saturated replicas, whoever
else is promoted."""

import hypothesis.strategies as st
from hypothesis import given, settings

from deployments.scheduling import Capacity, LanePolicy, SchedulingPolicy, TenantPolicy
from tests.deployments.scheduling.timed import Promotion, TimedWorld
from tests.deployments.scheduling.world import make_request, make_scheduler

BULK = (
    LanePolicy("small", 1_100, max_wait_s=1.0),
    LanePolicy("bulk", 5_000, weight=10, max_wait_s=1e6),
    LanePolicy("large", None, max_wait_s=1.0),
)
LANES = (
    LanePolicy("short", 200, weight=8, max_wait_s=2, cap_s=1e9),
    LanePolicy("mid", 1_000, weight=2, max_wait_s=1, cap_s=1e9),
    LanePolicy("long", None, weight=0.2, max_wait_s=3, cap_s=1e9),
)
WEIGHTS = {"a": 1.0, "b": 3.0, "c": 0.5, "d": 1.0, "e": 1.0}
WHOLE = Capacity(sequences=4, ahead=0, kv_tokens=5_000, step_tokens=800, prefill_steps=2.0)
"""Of its KV blocks, the largest requests need all."""


def test_room_drained_for_a_promoted_head_is_not_given_to_other_promoted_tenants() -> None:
    """40 tenants have a small request each promoted in turn; one request needs a replica of its own, and bulk work
    fills all room that it gets."""
    policy = SchedulingPolicy(BULK, decode_weight=1.0, max_waiting=100_000, promoted_share=0.5)
    world = TimedWorld(
        make_scheduler(
            1, policy, Capacity(sequences=8, ahead=0, kv_tokens=8_000, step_tokens=10**6, prefill_steps=2.0)
        ),
        speed=150.0,
    )
    for number in range(400):
        world.submit(make_request(f"bulk{number}", 1_900, 10, patience=1e6, tenant="bulk"))
    world.run_to(60.0)
    # Once `warm` has had its turn, the requests of tenants that come to be promoted later come before `large`.
    for name, tenant, prompt in (("warm", "large", 990), ("other", "other", 990), ("large", "large", 7_900)):
        world.submit(make_request(name, prompt, 10, world.now, patience=1e6, tenant=tenant))
    for number in range(40):
        world.run_to(60.5 + 4.0 * number)
        world.submit(make_request(f"small{number}", 990, 10, world.now, patience=1e6, tenant=f"t{number}"))
    world.run_to(1_000.0)
    drain_s = 1_910 / world.speed
    large = world.promotions["large"]
    assert 0 < large.wait_s <= drain_s
    assert any(large.promoted_s < promotion.promoted_s < large.placed_s for promotion in world.promotions.values()), (
        "others were promoted meanwhile"
    )


def max_promoted_work(of: Promotion, largest: float) -> float:
    """P of lanes.py."""
    own, minimum = WEIGHTS[of.tenant], min(WEIGHTS.values())
    others = (WEIGHTS[other] * ((of.own_ahead + largest) / own + largest / minimum) + largest for other in of.others)
    return of.own_ahead + sum(others)


@settings(max_examples=40)
@given(
    st.lists(
        st.tuples(
            st.one_of(st.integers(1, 3_000), st.integers(4_500, 4_990)), st.sampled_from("abcde"), st.floats(0, 0.5)
        ),
        min_size=20,
        max_size=80,
    ),
    st.integers(1, 3),
    st.floats(0.1, 0.6),
    st.floats(200, 2_000),
)
def test_a_promoted_request_waits_no_longer_than_the_bound(
    arrivals: list[tuple[int, str, float]], replicas: int, phi: float, speed: float
) -> None:
    policy = SchedulingPolicy(
        LANES,
        promoted_share=phi,
        decode_weight=1.0,
        tenants={name: TenantPolicy(weight) for name, weight in WEIGHTS.items()},
    )
    world = TimedWorld(make_scheduler(replicas, policy, WHOLE), speed)
    for number, (prompt, tenant, gap) in enumerate(arrivals):
        world.run_to(world.now + gap)
        world.submit(make_request(f"q{number}", prompt, 10, world.now, patience=1e6, slo=1.0, tenant=tenant))
    world.finish()
    assert len(world.placed) == len(arrivals)
    names = [name for name, _ in world.reservations]
    assert len(names) == len(set(names)), "what was drained for a request goes to that one"
    assert all(
        world.promotions[name].placed_s - since_s <= world.longest_s + 1e-6 for name, since_s in world.reservations
    )
    largest = world.scheduler.lanes.largest_cost
    for promotion in world.promotions.values():
        assert promotion.promoted_work <= max_promoted_work(promotion, largest) + 1e-6
        stretches = 1 if replicas == 1 else promotion.drains + 1
        maximum = (promotion.promoted_work + largest) / phi + 2 * len(LANES) * largest * stretches
        assert promotion.work <= maximum + 1e-6, "in work"
        rate = replicas * speed
        assert promotion.wait_s <= maximum / rate + (2 * promotion.drains + 1) * world.longest_s + 1e-6, "in time"
