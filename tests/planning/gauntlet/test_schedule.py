"""Schedules: what is needed is there in time, and no gap is shorter than a start."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from planning.gauntlet.schedule import BIN_S, Needed, Schedule, filled, runs_of, scheduled

needs = st.lists(st.integers(0, 5), min_size=1, max_size=60).map(lambda values: np.array(values, dtype=np.int64))
start_ups = st.sampled_from([0.0, 10.0, 25.0, 60.0, 300.0])


@given(needs)
def test_the_runs_make_up_the_schedule(needed: Needed) -> None:
    again = np.zeros_like(needed)
    for run in runs_of(needed):
        again[run.begin : run.end] += 1
    assert (again == needed).all()


@given(needs, start_ups, st.integers(0, 5))
def test_filling_takes_nothing_away_and_leaves_no_gap_shorter_than_a_start(needed: Needed, start_up_s: float, replicas: int) -> None:
    whole = filled(needed, start_up_s, replicas)
    assert (whole >= needed).all()
    assert whole.max(initial=0) == needed.max(initial=0)
    ends: dict[int, int] = {}
    for run in runs_of(whole):
        if run.level in ends:
            assert (run.begin - ends[run.level]) * BIN_S > start_up_s
        ends[run.level] = run.end
    assert (filled(whole, start_up_s, replicas) == whole).all()


@given(needs, start_ups, st.integers(0, 5))
def test_all_that_can_be_ready_in_time_is(needed: Needed, start_up_s: float, replicas: int) -> None:
    schedule = scheduled(needed, start_up_s, replicas)
    assert schedule.at_s[0] == 0
    assert min(schedule.replicas) >= 0
    for number, level in enumerate(needed.tolist()):
        at_s = number * BIN_S
        assert schedule(at_s) >= level
        if at_s >= start_up_s:  # as many were asked for all through the last start
            asked = min(schedule(moment) for moment in (at_s - start_up_s, *(t for t in schedule.at_s if at_s - start_up_s < t <= at_s)))
            assert asked >= level


def test_a_step_up_is_asked_for_a_start_ahead() -> None:
    needed = np.array([1] * 10 + [3] * 5 + [1] * 10)
    assert scheduled(needed, 30.0, 1) == Schedule((0.0, 70.0, 150.0, 250.0), (1, 3, 1, 0))


def test_those_at_the_beginning_are_kept_for_what_comes_soon() -> None:
    needed = np.array([1, 1, 3, 3, 1])
    assert scheduled(needed, 30.0, 3)(0.0) == 3
    assert scheduled(needed, 10.0, 3).replicas == (1, 3, 1, 0)
