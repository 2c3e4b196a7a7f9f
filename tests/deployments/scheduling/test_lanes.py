"""Lanes and their queues, call by call: whose turn it is, what waits, what is charged, promoted, given up and
remembered."""

import dataclasses
import random

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from deployments.scheduling import LanePolicy, SchedulingPolicy, TenantPolicy
from deployments.scheduling.lane import WorkByKey
from deployments.scheduling.lanes import Lanes
from deployments.scheduling.request import Job
from tests.deployments.scheduling.world import make_request

POLICY = SchedulingPolicy(
    (LanePolicy("short", 200, weight=3, max_wait_s=10), LanePolicy("long", None, weight=1, max_wait_s=40)),
    promoted_share=0.2,
    tenants={"b": TenantPolicy(3.0)},
)


@settings(max_examples=20)
@given(st.integers(0, 1 << 30), st.floats(-1, 201))
def test_the_work_before_a_key_is_right_to_the_width_of_a_bin(seed: int, key: float) -> None:
    drawn = random.Random(seed)
    jobs = [(drawn.uniform(0, 200), drawn.randint(1, 99), drawn.random() < 0.5) for _ in range(225)]
    by_key, width = WorkByKey(), 200 / 64
    for one, work, _ in jobs:
        by_key.add(one, work)
    for one, work, leaves in jobs:
        if leaves:
            by_key.remove(one, work)
    at_least, at_most = (
        sum(work for one, work, leaves in jobs if not leaves and one < key + way * width) for way in (-1, 1)
    )
    assert at_least - 1e-6 <= by_key.before(key) <= at_most + 1e-6


def enter(lanes: Lanes, name: str, cost: float = 100.0, tokens: int = 100, tenant: str = "", slo: float = 5.0) -> Job:
    """A job of that cost arrives at 0 and waits."""
    made = Job(make_request(name, tokens, slo=slo, tenant=tenant), lanes.next_sequence())
    made.prefill_tokens, made.cost = tokens, cost
    lanes.find_home(made)
    lanes.enter(made)
    return made


def serve(lanes: Lanes, passed_over: tuple[str, ...] = (), now: float = 0.0) -> str:
    """Serves the head of the lane that is due, after those were passed over."""
    skipped = [lane for lane in lanes.all if lane.name in passed_over]
    lane = lanes.due(skipped)
    assert lane is not None
    head = lane.head()
    assert head is not None
    head.attempt += 1
    lanes.serve(lane, head, skipped)
    return head.request.request_id


def test_a_lane_that_is_passed_over_is_not_due_and_keeps_a_claim_of_one_request() -> None:
    lanes = Lanes(POLICY)
    enter(lanes, "l", 50.0, 1_000)
    for number in range(100):
        enter(lanes, f"s{number}", 60.0)
    for _ in range(50):
        assert serve(lanes, ("long",))[0] == "s"
    virtual = lanes._clock.virtual
    assert lanes.lanes[1].flow.start == pytest.approx(virtual - 60.0 / 0.2)
    assert lanes.due(list(lanes.all)) is None


def test_a_refused_job_waits_before_all_others_and_is_charged_once() -> None:
    lanes = Lanes(POLICY)
    for number in range(3):
        enter(lanes, f"q{number}", tenant="a")
    first, second = lanes.jobs["q0"], lanes.jobs["q1"]
    assert [serve(lanes), serve(lanes)] == ["q0", "q1"]
    start, virtual = lanes.lanes[0].flow.start, lanes._clock.virtual
    lanes.enter_again(second)
    lanes.enter_again(first)
    assert lanes.lanes[0].oldest() is first
    assert [serve(lanes), serve(lanes)] == ["q1", "q0"]
    assert (lanes.lanes[0].flow.start, lanes._clock.virtual) == (start, virtual)
    lanes.enter_again(first)
    lanes.leave(first)
    assert serve(lanes) == "q2"


def test_the_lane_of_a_job_is_by_its_prompt_and_output_over_all_sequences() -> None:
    lanes = Lanes(POLICY)
    for tokens, output, sequences, home in ((150, 50, 1, 0), (151, 50, 1, 1), (100, 50, 2, 0), (101, 50, 2, 1)):
        made = Job(make_request("q", sequences=sequences), 1)
        made.prefill_tokens, made.output_tokens = tokens, output
        lanes.find_home(made)
        assert (made.home, made.home_name) == (home, ("short", "long")[home])


def test_a_reload_moves_what_waits_and_keeps_what_was_served() -> None:
    lanes = Lanes(POLICY)
    enter(lanes, "served", 60.0)
    serve(lanes)
    for number in range(3):
        enter(lanes, f"q{number}", 100.0 + number, slo=60.0)
    earlier = enter(lanes, "earlier", slo=60.0)
    earlier.request = dataclasses.replace(earlier.request, arrived_s=-10.0)
    finish = lanes.lanes[0].flow.finish
    assert finish == pytest.approx(60.0 / 0.6)
    lanes.configure(dataclasses.replace(POLICY, lanes=(LanePolicy("tiny", 50), *POLICY.lanes), promoted_share=0.5))
    assert [(lane.name, lane.count, lane.work) for lane in lanes.all] == [
        ("tiny", 0, 0.0),
        ("short", 4, 403.0),
        ("long", 0, 0.0),
        ("promoted", 0, 0.0),
    ]
    assert lanes.lanes[1].flow.finish == finish
    assert lanes.lanes[1].flow.start == finish
    assert lanes.promoted.flow.weight == 0.5
    assert lanes.next_wakeup() == 0.0, "10 s after it arrived"
    assert [serve(lanes) for _ in range(4)] == ["q0", "earlier", "q1", "q2"]
