"""The bound on the wait of the promoted, as lanes.py states it: in work and in time, on saturated replicas, whoever
else is promoted."""

import dataclasses
from collections.abc import Iterable

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from deployments.scheduling import Capacity, LanePolicy, Scheduler, SchedulingPolicy, TenantPolicy
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
TENANTS = {name: TenantPolicy(weight) for name, weight in WEIGHTS.items()}
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


def serve(world: TimedWorld, arrivals: list[tuple[int, str, float]]) -> None:
    """All of them: prompt, tenant, and the time (s) since the one before."""
    for number, (prompt, tenant, gap) in enumerate(arrivals):
        world.run_to(world.now + gap)
        world.submit(make_request(f"q{number}", prompt, 10, world.now, patience=1e6, slo=1.0, tenant=tenant))
    world.finish()
    assert len(world.placed) == len(arrivals)


def max_promoted_work(of: Promotion, largest: float) -> float:
    """P of lanes.py, of its own queue."""
    return _max_of_queue(of.own_ahead, WEIGHTS[of.tenant], of.others, largest)


def _max_of_queue(ahead: float, weight: float, others: Iterable[str], largest: float) -> float:
    minimum = min(WEIGHTS.values())
    return ahead + sum(WEIGHTS[one] * ((ahead + largest) / weight + largest / minimum) + largest for one in others)


@pytest.mark.whole
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
    policy = SchedulingPolicy(LANES, promoted_share=phi, decode_weight=1.0, tenants=TENANTS)
    world = TimedWorld(make_scheduler(replicas, policy, WHOLE), speed)
    serve(world, arrivals)
    names = [name for name, _ in world.reservations]
    assert len(names) == len(set(names)), "what was drained for a request goes to that one"
    assert all(
        world.promotions[name].placed_s - since_s <= world.longest_s + 1e-6 for name, since_s in world.reservations
    )
    largest = world.scheduler.lanes.largest_cost
    for promotion in (one for one in world.promotions.values() if not one.was_over):
        assert promotion.promoted_work <= max_promoted_work(promotion, largest) + 1e-6
        stretches = 1 if replicas == 1 else promotion.drains + 1
        maximum = (promotion.promoted_work + largest) / phi + 2 * len(LANES) * largest * stretches
        assert promotion.work <= maximum + 1e-6, "in work"
        rate = replicas * speed
        assert promotion.wait_s <= maximum / rate + (2 * promotion.drains + 1) * world.longest_s + 1e-6, "in time"


GROUPED = {"short": ("cheap",), "mid": ("cheap", "dear"), "long": ("dear",)}
CONTEXTS = {"cheap": 600, "dear": 5_000}
CHEAP = Capacity(2, 0, 1_000, 400, 2.0, "cheap", 600)
DEAR = dataclasses.replace(WHOLE, group="dear", context_tokens=5_000)


@pytest.mark.whole
def test_a_promoted_request_gets_a_replica_of_a_group_that_others_keep_full() -> None:
    """The only replica of its group runs one request at a time, and a lane with a small weight always has the next.
    Meanwhile the other group serves so much that this lane's claim is never used up."""
    lanes = (
        LanePolicy("victim", 50, weight=1, max_wait_s=1.0),
        LanePolicy("greedy", 500, weight=0.05, max_wait_s=1e6, cap_s=1e9),
        LanePolicy("other", None, weight=1, max_wait_s=1e6, cap_s=1e9),
    )
    policy = SchedulingPolicy(
        lanes,
        decode_weight=1.0,
        max_waiting=100_000,
        groups={"victim": ("cheap",), "greedy": ("cheap",), "other": ("dear",)},
        contexts=CONTEXTS,
        promoted_share=0.25,
    )
    world = TimedWorld(Scheduler(policy), speed=1_000.0)
    world.scheduler.replica_up("a", dataclasses.replace(CHEAP, sequences=1), 0.0)
    for number in range(8):
        world.scheduler.replica_up(f"b{number}", dataclasses.replace(DEAR, step_tokens=10**6), 0.0)
    for number in range(200):
        world.submit(make_request(f"greedy{number}", 400, 10, patience=1e6))
    for number in range(4_000):
        world.submit(make_request(f"other{number}", 1_000, 10, patience=1e6))
    world.run_to(10.0)
    world.submit(make_request("victim", 10, 10, world.now, patience=1e6))
    world.run_to(60.0)
    victim = world.promotions["victim"]
    assert victim.wait_s <= 2 * world.longest_s


@pytest.mark.whole
@settings(max_examples=40)
@given(
    st.lists(
        st.tuples(
            st.one_of(st.integers(1, 700), st.integers(701, 3_000), st.integers(4_500, 4_990)),
            st.sampled_from("abcde"),
            st.floats(0, 0.5),
        ),
        min_size=20,
        max_size=80,
    ),
    st.integers(1, 2),
    st.integers(1, 2),
    st.floats(0.1, 0.6),
    st.floats(200, 2_000),
)
def test_with_groups_a_promoted_request_waits_no_longer_than_the_bound(
    arrivals: list[tuple[int, str, float]], cheap: int, dear: int, phi: float, speed: float
) -> None:
    policy = SchedulingPolicy(
        LANES, promoted_share=phi, decode_weight=1.0, tenants=TENANTS, groups=GROUPED, contexts=CONTEXTS
    )
    scheduler = Scheduler(policy)
    numbers = {"cheap": cheap, "dear": dear}
    for name, capacity in (("cheap", CHEAP), ("dear", DEAR)):
        for number in range(numbers[name]):
            scheduler.replica_up(f"{name}{number}", capacity, 0.0)
    world = TimedWorld(scheduler, speed)
    serve(world, arrivals)
    largest = world.scheduler.lanes.largest_cost
    for promotion in (one for one in world.promotions.values() if not one.was_over):
        for queue, work in promotion.promoted.items():
            if queue == promotion.queue:
                assert work <= max_promoted_work(promotion, largest) + 1e-6
            else:
                older = promotion.ahead.get(queue, 0.0)
                assert work <= (_max_of_queue(older, min(WEIGHTS.values()), WEIGHTS, largest) if older else 0.0) + 1e-6
        stretches = promotion.drains + 1
        maximum = promotion.promoted_work / phi + stretches * (largest / phi + 2 * len(GROUPED) * largest)
        assert promotion.work <= maximum + 1e-6, "in work"
        assert promotion.groups is not None
        rate = speed * sum(numbers[group] for group in promotion.groups)
        assert promotion.wait_s <= maximum / rate + (2 * promotion.drains + 1) * world.longest_s + 1e-6, "in time"
