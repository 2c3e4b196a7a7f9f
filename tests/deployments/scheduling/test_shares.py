"""Who is served how much: shares between lanes and tenants, deadline order, and the bound on starvation."""

import dataclasses
import itertools
from collections import deque
from collections.abc import Iterator

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from deployments.scheduling import (
    Capacity,
    Ending,
    LanePolicy,
    Placement,
    Request,
    Scheduler,
    SchedulingPolicy,
    TenantPolicy,
)
from tests.deployments.scheduling.world import make_request, make_scheduler

ONE_AT_A_TIME = Capacity(sequences=1, ahead=0, kv_tokens=10**9, step_tokens=10**9, prefill_steps=2.0)
LANES = (LanePolicy("short", 200, weight=4, max_wait_s=1e6), LanePolicy("long", None, weight=1, max_wait_s=1e6))


def serve_all(scheduler: Scheduler, now: float = 0.0) -> Iterator[Placement]:
    """Places and finishes one request after the other."""
    while placements := scheduler.step(now).placements:
        for placement in placements:
            yield placement
            scheduler.release(placement.lease, Ending.FINISHED, None, now)


def spread(served: list[tuple[str, float]], first: str, second: str, weights: dict[str, float]) -> float:
    """The largest difference in weighted work between the two, over all intervals."""
    lead = [
        0.0,
        *itertools.accumulate(
            cost / weights[who] * (1 if who == first else -1 if who == second else 0) for who, cost in served
        ),
    ]
    return max(lead) - min(lead)


def cost_of(request: Request, policy: SchedulingPolicy) -> float:
    """What a request is booked with while nothing is learned yet."""
    return request.prompt_tokens + policy.decode_weight * (request.max_tokens or 0)


@pytest.mark.whole
@settings(max_examples=100)
@given(
    st.lists(st.integers(1, 150), min_size=5, max_size=40),
    st.lists(st.integers(300, 4_000), min_size=5, max_size=40),
    st.floats(0.2, 8),
)
def test_lanes_share_by_weight_to_within_a_request_each(short: list[int], long: list[int], weight: float) -> None:
    lanes = (dataclasses.replace(LANES[0], weight=weight), LANES[1])
    policy = SchedulingPolicy(lanes=lanes, decode_weight=1.0)
    scheduler = make_scheduler(1, policy, ONE_AT_A_TIME)
    left = {"short": len(short), "long": len(long)}
    for number, prompt in enumerate([*short, *long]):
        scheduler.submit(make_request(f"q{number}", prompt, 1), 0.0)
    served: list[tuple[str, float]] = []
    for placement in serve_all(scheduler):
        served.append((placement.lane, cost_of(placement.request, policy)))
        left[placement.lane] -= 1
        if not all(left.values()):
            break
    largest = max(cost for _, cost in served)
    weights = {"short": weight, "long": 1.0}
    assert spread(served, "short", "long", weights) <= largest / weight + largest + 1e-6


@pytest.mark.whole
@given(st.integers(4, 9), st.integers(18, 30), st.integers(300, 999), st.integers(1, 3))
def test_who_is_below_its_share_waits_for_few_others(every: int, sequences: int, prompt: int, steps: int) -> None:
    """Long prompts hold the only replica in turns, for its prefill backlog; a short one that comes now and then waits
    for no second turn."""
    policy = SchedulingPolicy(lanes=(dataclasses.replace(LANES[0], weight=16), LANES[1]), decode_weight=1.0)
    scheduler = make_scheduler(
        1, policy, Capacity(sequences=sequences, ahead=1, kv_tokens=10**9, step_tokens=1_000, prefill_steps=steps)
    )
    for number in range(200):
        scheduler.submit(make_request(f"long{number}", prompt, 1), 0.0)
    running: deque[Placement] = deque()
    prefilling: deque[Placement] = deque()
    longs_at: dict[str, int] = {}
    longs = 0
    for turn in range(120):
        if turn % every == 0:
            scheduler.submit(make_request(f"short{turn}", 150, 1), 0.0)
            longs_at[f"short{turn}"] = longs
        for placement in scheduler.step(0.0).placements:
            running.append(placement)
            prefilling.append(placement)
            longs += placement.lane == "long"
            if placement.lane == "short":
                assert longs - longs_at.pop(placement.request.request_id) <= 3
        if prefilling:
            scheduler.first_token(prefilling.popleft().lease, 0.0)
        if len(running) > 16:
            scheduler.release(running.popleft().lease, Ending.FINISHED, None, 0.0)
    assert len(longs_at) <= 1


@pytest.mark.whole
@settings(max_examples=100)
@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 900)), min_size=10, max_size=60), st.floats(0.3, 5))
def test_tenants_share_a_lane_by_weight_to_within_a_request_each(
    requests: list[tuple[str, int]], weight: float
) -> None:
    policy = SchedulingPolicy(
        lanes=(LanePolicy("all", None, max_wait_s=1e6),), decode_weight=1.0, tenants={"a": TenantPolicy(weight)}
    )
    scheduler = make_scheduler(1, policy, ONE_AT_A_TIME)
    left = {tenant: sum(who == tenant for who, _ in requests) for tenant in "abc"}
    for number, (tenant, prompt) in enumerate(requests):
        scheduler.submit(make_request(f"q{number}", prompt, 1, tenant=tenant), 0.0)
    served: list[tuple[str, float]] = []
    weights = {"a": weight, "b": 1.0, "c": 1.0}
    present = [tenant for tenant in "abc" if left[tenant]]
    for placement in serve_all(scheduler):
        served.append((placement.request.tenant, cost_of(placement.request, policy)))
        left[placement.request.tenant] -= 1
        if not all(left[tenant] for tenant in present):
            break
    largest = max(cost for _, cost in served)
    for first, second in itertools.combinations(present, 2):
        assert spread(served, first, second, weights) <= largest / weights[first] + largest / weights[second] + 1e-6


@pytest.mark.parametrize("small", [1, 60])
def test_a_large_prompt_is_not_starved_by_small_ones_in_the_prefill_budget(small: int) -> None:
    capacity = Capacity(sequences=64, ahead=0, kv_tokens=10**6, step_tokens=100, prefill_steps=2.0)
    scheduler = make_scheduler(1, SchedulingPolicy(lanes=LANES, decode_weight=1.0), capacity)
    for number in range(200):
        scheduler.submit(make_request(f"s{number}", small, 1), 0.0)
    scheduler.submit(make_request("large", 2_000, 1), 0.0)
    placed_before = 0
    running: list[Placement] = []
    for _ in range(400):
        for placement in scheduler.step(0.0).placements:
            if placement.request.request_id == "large":
                assert placed_before * (small + 1) <= 4 * 2_001 + 400
                return
            placed_before += 1
            running.append(placement)
        lease = running.pop(0).lease
        scheduler.first_token(lease, 0.0)
        scheduler.release(lease, Ending.FINISHED, None, 0.0)
    raise AssertionError("the large prompt was never placed")
