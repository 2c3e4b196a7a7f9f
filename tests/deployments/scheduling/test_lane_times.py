"""Times in a lane, call by call: who is promoted when, who comes first, and which times count no more."""

import dataclasses

import hypothesis.strategies as st
import pytest
from hypothesis import given

from deployments.scheduling import Order
from deployments.scheduling.lane import AGEING_S, WorkByKey
from deployments.scheduling.lanes import Lanes
from tests.deployments.scheduling.test_lanes import POLICY, enter, serve


def test_promotion_is_by_the_time_that_the_lane_says_and_in_that_order() -> None:
    lanes = Lanes(POLICY)
    one, two = enter(lanes, "one"), enter(lanes, "two", tokens=1_000)
    assert lanes.next_wakeup() == 10.0
    lanes.promote(9.9)
    assert one.promoted_s is None
    lanes.promote(10.0)
    assert (one.promoted_s, one.lane, two.promoted_s) == (10.0, lanes.promoted, None)
    assert lanes.next_wakeup() == 40.0
    lanes.promote(41.0)
    assert (one.promoted_s, two.promoted_s) == (10.0, 41.0)
    assert [serve(lanes) for _ in range(2)] == ["one", "two"]


@pytest.mark.parametrize(("order", "served"), [(Order.SHORTEST, ["b", "c", "a"]), (Order.ARRIVAL, ["a", "b", "c"])])
def test_the_order_is_the_policys(order: Order, served: list[str]) -> None:
    lanes = Lanes(dataclasses.replace(POLICY, order=order))
    for name, cost in (("a", 150.0), ("b", 50.0), ("c", 100.0)):
        enter(lanes, name, cost)
    assert [serve(lanes) for _ in range(3)] == served


@pytest.mark.whole
@given(st.lists(st.tuples(st.integers(0, 400), st.floats(1, 10_000), st.floats(0, 30)), min_size=1, max_size=60))
def test_the_smallest_key_is_next_whoever_came_and_left_before(jobs: list[tuple[int, float, float]]) -> None:
    lanes = Lanes(POLICY)
    lane, waiting = lanes.lanes[0], []
    for number, (turn, cost, slo) in enumerate(jobs):
        waiting.append(enter(lanes, f"q{number}", cost, slo=slo))
        if turn % 3 == 0:
            lanes.leave(waiting.pop(turn % len(waiting)))
        if turn % 4 == 0 and waiting:
            first = lane.head()
            assert first is min(waiting, key=lambda one: (one.deadline_s + AGEING_S * one.cost, one.sequence))
            serve(lanes)
            waiting.remove(first)


@given(st.lists(st.tuples(st.floats(0, 5_000), st.floats(1, 1_000)), min_size=1, max_size=400), st.floats(0, 5_000))
def test_the_work_before_a_key_is_right_to_within_the_bin_of_the_key(
    jobs: list[tuple[float, float]], key: float
) -> None:
    known = WorkByKey()
    for one, work in jobs:
        known.add(one, work)
    low = sum(work for one, work in jobs if one < key - known._width)
    high = sum(work for one, work in jobs if one < key + known._width)
    assert low - 1e-6 <= known.before(key) <= high + 1e-6
    assert len(known._bins) <= 128
    for one, work in jobs:
        known.remove(one, work)
    assert known.before(1e9) == 0.0
