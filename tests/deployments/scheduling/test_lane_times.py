"""Times in a lane, call by call: who is promoted when, who comes first, and which times count no more."""

import dataclasses

import hypothesis.strategies as st
import pytest
from hypothesis import given

from deployments.scheduling import Order
from deployments.scheduling.lane import AGEING_S, WorkByKey
from deployments.scheduling.lanes import Lanes, Wakeups
from tests.deployments.scheduling.test_lanes import POLICY, enter, serve


def test_the_promoted_come_first_among_equals() -> None:
    lanes = Lanes(POLICY)
    enter(lanes, "p")
    lanes.promote(10.0)
    enter(lanes, "s")
    assert lanes.promoted.flow.start == lanes.lanes[0].flow.start
    assert serve(lanes) == "p"


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


def test_the_promoted_are_served_in_the_order_of_their_promotion() -> None:
    lanes = Lanes(POLICY)
    enter(lanes, "long", tokens=1_000)  # comes first, and is promoted last
    for number in range(3):
        enter(lanes, f"s{number}")
    lanes.promote(10.0)
    lanes.promote(40.0)
    assert [serve(lanes) for _ in range(4)] == ["s0", "s1", "s2", "long"]


def test_who_gives_up_before_its_promotion_is_never_promoted() -> None:
    lanes = Lanes(POLICY)
    enter(lanes, "hasty", patience=10.0)
    assert lanes.next_wakeup() == 10.0
    lanes.promote(10.0)
    assert lanes.promoted.count == 0
    assert list(lanes.expire(9.9)) == []
    assert [gone.request.request_id for gone in lanes.expire(10.0)] == ["hasty"]
    assert lanes.jobs == {}


def test_the_least_work_comes_first_unless_another_is_older_by_what_that_work_weighs() -> None:
    lanes = Lanes(POLICY)
    for name, cost, slo in (("large", 200.0, 5.0), ("small", 20.0, 5.0), ("middle", 100.0, 5.0)):
        enter(lanes, name, cost, slo=slo)
    enter(lanes, "soon", 20.0, slo=5.0 + 80.0 * AGEING_S - 0.01)
    enter(lanes, "too late", 20.0, slo=5.0 + 80.0 * AGEING_S + 0.01)
    assert [serve(lanes) for _ in range(5)] == ["small", "soon", "middle", "too late", "large"]


@pytest.mark.parametrize(("order", "served"), [(Order.SHORTEST, ["b", "c", "a"]), (Order.ARRIVAL, ["a", "b", "c"])])
def test_the_order_is_the_policys(order: Order, served: list[str]) -> None:
    lanes = Lanes(dataclasses.replace(POLICY, order=order))
    for name, cost in (("a", 150.0), ("b", 50.0), ("c", 100.0)):
        enter(lanes, name, cost)
    assert [serve(lanes) for _ in range(3)] == served


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


def test_times_of_who_waits_no_more_or_anew_do_not_count() -> None:
    lanes, wakeups = Lanes(POLICY), Wakeups()
    one, two = enter(lanes, "one"), enter(lanes, "two")
    wakeups.add(5.0, one)
    wakeups.add(6.0, two)
    assert wakeups.next_s() == 5.0
    lanes.leave(one)
    assert wakeups.next_s() == 6.0
    two.wait_id += 1
    assert wakeups.next_s() is None
    wakeups.add(8.0, two)
    assert (list(wakeups.due(7.9)), wakeups.next_s()) == ([], 8.0)
    assert list(wakeups.due(8.0)) == [two]
    assert list(wakeups.due(9.0)) == []
    wakeups.add(9.0, two)
    wakeups.clear()
    assert wakeups.next_s() is None


def test_dead_times_are_dropped_when_they_outnumber_the_living() -> None:
    lanes, wakeups = Lanes(POLICY), Wakeups()
    living = enter(lanes, "living")
    for number in range(66):
        gone = enter(lanes, f"q{number}")
        wakeups.add(float(number), gone)
        lanes.leave(gone)
    wakeups.trim(1)
    assert len(wakeups._heap) == 66
    wakeups.add(99.0, living)
    wakeups.trim(1)
    assert len(wakeups._heap) == 1
    assert wakeups.next_s() == 99.0
