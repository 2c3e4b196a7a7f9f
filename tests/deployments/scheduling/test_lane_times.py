"""Times in a lane, call by call: who is promoted when, who is late, and which times count no more."""

import dataclasses
import math

import pytest

from deployments.scheduling import Order
from deployments.scheduling.lanes import Lanes, Wakeups
from tests.deployments.scheduling.test_lanes import POLICY, enter, job, serve


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
    assert (one.promoted_s, one.lane, one.latest_start_s, two.promoted_s) == (10.0, lanes.promoted, math.inf, None)
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


def test_the_earliest_deadline_comes_first_and_who_can_no_longer_meet_it_last() -> None:
    lanes = Lanes(POLICY)
    for name, slo in (("late", 1.0), ("third", 9.0), ("second", 3.0), ("lost", 1.5)):
        enter(lanes, name, slo=slo)
    lane = lanes.lanes[0]
    assert [serve(lanes, now=2.0) for _ in range(4)] == ["second", "third", "late", "lost"]
    assert (lane.late, lane.late_work) == (0, 0.0)


def test_who_is_late_is_counted_and_told_of_once() -> None:
    lanes = Lanes(POLICY)
    jobs = [enter(lanes, f"q{number}", 50.0 + number, slo=1.0 + number) for number in range(3)]
    lane = lanes.lanes[0]
    for _ in range(2):
        assert lane.head(2.5) is jobs[2]
    assert (lane.late, lane.late_work, lane.turned_late) == (2, 101.0, jobs[:2])
    assert lane.head(2.0) is jobs[2], "and does not become timely again"
    lanes.leave(jobs[0])
    assert (lane.late, lane.late_work) == (1, 51.0)
    lanes.leave(jobs[1])
    assert (lane.late, lane.late_work, jobs[1].late) == (0, 0.0, False)


def test_exactly_at_its_latest_start_it_is_still_in_time() -> None:
    lanes = Lanes(POLICY)
    one = enter(lanes, "one", slo=2.0)
    two = enter(lanes, "two", slo=9.0)
    assert lanes.lanes[0].head(2.0) is one
    assert lanes.lanes[0].head(2.001) is two


@pytest.mark.parametrize(
    ("order", "promoted_s", "latest"),
    [(Order.DEADLINE, None, 5.0), (Order.ARRIVAL, None, math.inf), (Order.DEADLINE, 3.0, math.inf)],
)
def test_only_a_deadline_makes_late(order: Order, promoted_s: float | None, latest: float) -> None:
    lanes = Lanes(dataclasses.replace(POLICY, order=order))
    made = job(lanes, "q")
    made.promoted_s = promoted_s
    lanes.find_home(made)
    assert made.latest_start_s == latest


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
