"""Tenants across lanes and groups: who is over its share, and what that bounds."""

import dataclasses
from collections import defaultdict

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from deployments.scheduling import Ending, LanePolicy, Placement, Scheduler, SchedulingPolicy, TenantPolicy
from deployments.scheduling.reasons import WaitReason
from tests.deployments.scheduling.world import ONE_AT_A_TIME, make_request, make_scheduler, submit_all

LANES = (LanePolicy("short", 200, weight=16, max_wait_s=1e6), LanePolicy("long", None, weight=1, max_wait_s=1e6))
WEIGHTS = {"a": 1.0, "b": 3.0, "c": 0.5, "d": 1.0}
SPEED = 1_000.0


def policy_of(lanes: tuple[LanePolicy, ...] = LANES, **more: object) -> SchedulingPolicy:
    tenants = {name: TenantPolicy(weight) for name, weight in WEIGHTS.items()}
    return SchedulingPolicy(lanes, decode_weight=1.0, tenants=tenants, max_waiting=10_000, **more)  # type: ignore[arg-type]


def flooded(scheduler: Scheduler, tenant: str = "a", count: int = 300) -> None:
    for number in range(count):
        scheduler.submit(make_request(f"{tenant}{number}", 99, 1, tenant=tenant, patience=1e6), 0.0)


def serve(scheduler: Scheduler, placed: list[Placement], until: str, now: float = 0.0, most: int = 10_000) -> float:
    """One request after the other, each for its cost over the speed, until one is placed."""
    for _ in range(most):
        (placement,) = scheduler.step(now).placements
        placed.append(placement)
        now += placement.request.prompt_tokens / SPEED
        scheduler.first_token(placement.lease, now)
        scheduler.release(placement.lease, Ending.FINISHED, None, now)
        if placement.request.request_id == until:
            return now
    raise AssertionError(f"{until} was not placed")


def test_alone_nobody_is_over_its_share() -> None:
    scheduler = make_scheduler(1, policy_of(), ONE_AT_A_TIME)
    flooded(scheduler)
    placed: list[Placement] = []
    serve(scheduler, placed, "a299")
    assert not scheduler.lanes.jobs


def test_what_is_over_its_share_waits_where_others_do_and_not_in_a_group_that_they_cannot_use() -> None:
    groups = {"short": ("cheap", "dear"), "long": ("dear",)}
    scheduler = Scheduler(policy_of(groups=groups, contexts={"cheap": 400, "dear": 8_000}))
    one = dataclasses.replace(ONE_AT_A_TIME, group="dear", context_tokens=8_000)
    scheduler.replica_up("dear", one, 0.0)
    flooded(scheduler)
    placed: list[Placement] = []
    now = serve(scheduler, placed, "a40")
    scheduler.submit(make_request("d0", 2_000, 1, now, tenant="d", patience=1e6), now)
    now = serve(scheduler, placed, "d0", now)
    submit_all(scheduler, 8, "e", prompt=2_000, output=1, now=now, tenant="d", patience=1e6)
    now = serve(scheduler, placed, "e0", now)
    scheduler.replica_up("cheap", dataclasses.replace(ONE_AT_A_TIME, group="cheap", context_tokens=400), now)
    placements = scheduler.step(now).placements
    assert {(one.request.tenant, one.replica_id) for one in placements} >= {("a", "cheap")}


def test_a_lane_in_which_all_are_over_their_share_says_so() -> None:
    scheduler = make_scheduler(1, policy_of(), dataclasses.replace(ONE_AT_A_TIME, sequences=2, kv_tokens=3_000))
    flooded(scheduler)
    placed = list(scheduler.step(0.0).placements)
    scheduler.submit(make_request("long", 2_950, 1, 0.0, tenant="d", patience=1e6), 0.0)
    for turn in range(1, 200):
        now = turn / 10
        lease = placed.pop(0).lease
        scheduler.first_token(lease, now)
        scheduler.release(lease, Ending.FINISHED, None, now)
        placements = scheduler.step(now).placements
        if not placements:
            break
        placed += placements
    assert dict(scheduler.head_waits()) == {"short": WaitReason.OVER_SHARE, "long": WaitReason.KV_TOKENS}


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from("abcd"),
    st.lists(st.tuples(st.sampled_from("abcd"), st.integers(1, 400), st.floats(0, 2.0)), min_size=5, max_size=60),
)
@pytest.mark.whole
def test_while_a_tenant_waits_another_gets_at_most_its_share_and_the_slack(
    flooder: str, requests: list[tuple[str, int, float]]
) -> None:
    """One tenant has 300 short requests at once."""
    lanes = (dataclasses.replace(LANES[0], max_wait_s=50.0), dataclasses.replace(LANES[1], max_wait_s=90.0))
    scheduler = make_scheduler(1, policy_of(lanes), ONE_AT_A_TIME)
    waiting: dict[str, int] = defaultdict(int)
    work: dict[str, float] = dict.fromkeys(WEIGHTS, 0.0)
    since: dict[str, dict[str, float]] = {}
    """What all had been given as a tenant began to wait."""
    todo = [(flooder, 100, 0.0)] * 300 + requests
    now = arrives = ends = slack = 0.0
    running: Placement | None = None
    largest = max(prompt for _, prompt, _ in todo) + 1.0
    for number, (tenant, prompt, gap) in enumerate([*todo, ("", 0, 1e9)]):
        arrives += gap * prompt / 200.0
        while running is not None and (not prompt or ends < arrives):
            now = ends
            scheduler.first_token(running.lease, now)
            scheduler.release(running.lease, Ending.FINISHED, None, now)
            (running,) = scheduler.step(now).placements or (None,)
            if running is not None:
                ends = now + placed(running, work, waiting, since) / 200.0
                slack = max(slack, scheduler.lanes.accounts.slack)
                for other, began in since.items():
                    share = (work[other] - began[other] + slack + largest) / WEIGHTS[other]
                    for one, weight in WEIGHTS.items():
                        assert work[one] - began[one] <= weight * share + 2 * slack + 2 * largest + 1e-6 or one == other
        if prompt:
            now = max(now, arrives)
            scheduler.submit(make_request(f"q{number}", prompt, 1, now, tenant=tenant, patience=1e6), now)
            waiting[tenant] += 1
            since.setdefault(tenant, dict(work))
            if running is None:
                (running,) = scheduler.step(now).placements
                ends = now + placed(running, work, waiting, since) / 200.0
    assert not scheduler.lanes.jobs


def placed(
    placement: Placement, work: dict[str, float], waiting: dict[str, int], since: dict[str, dict[str, float]]
) -> float:
    """Accounts for it. Its cost."""
    tenant, cost = placement.request.tenant, placement.request.prompt_tokens + 1.0
    work[tenant] += cost
    waiting[tenant] -= 1
    if not waiting[tenant]:
        since.pop(tenant)
    return cost
