"""Schedules: what is needed is there in time, and no gap is shorter than a start."""

import itertools
from itertools import pairwise

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from planning.gauntlet.schedule import (
    AROUND,
    BIN_S,
    Needed,
    ReplicaSchedule,
    ScheduleShape,
    affordable,
    apart,
    changed,
    cuts,
    filled,
    raises,
    reshaped,
    runs_of,
    scheduled,
)

needs = st.lists(st.integers(0, 5), min_size=1, max_size=60).map(lambda values: np.array(values, dtype=np.int64))
start_ups = st.sampled_from([0.0, 10.0, 25.0, 60.0, 300.0])


@given(needs)
def test_the_runs_make_up_the_schedule(needed: Needed) -> None:
    again = np.zeros_like(needed)
    for run in runs_of(needed):
        again[run.begin : run.end] += 1
    assert (again == needed).all()


@given(needs, start_ups, st.integers(0, 5))
def test_filling_takes_nothing_away_and_leaves_no_gap_shorter_than_a_start(
    needed: Needed, start_up_s: float, replicas: int
) -> None:
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
            asked = min(
                schedule(moment)
                for moment in (at_s - start_up_s, *(t for t in schedule.at_s if at_s - start_up_s < t <= at_s))
            )
            assert asked >= level


def test_a_step_up_is_asked_for_a_start_ahead() -> None:
    needed = np.array([1] * 10 + [3] * 5 + [1] * 10)
    assert scheduled(needed, 30.0, 1) == ReplicaSchedule((0.0, 70.0, 150.0, 250.0), (1, 3, 1, 0))


def test_those_at_the_beginning_are_kept_for_what_comes_soon() -> None:
    needed = np.array([1, 1, 3, 3, 1])
    assert scheduled(needed, 30.0, 3)(0.0) == 3
    assert scheduled(needed, 10.0, 3).replicas == (1, 3, 1, 0)


WIDTH = 3


def shape_of(levels: list[int], lower: list[int], upper: list[int], start: float = 4.0) -> ScheduleShape:
    window = np.repeat(np.arange(len(levels)), WIDTH)
    needed = np.repeat(np.array(levels), WIDTH)
    return ScheduleShape(
        needed, window, np.array(lower, dtype=np.float64), -np.array(upper, dtype=np.float64), start, 1, 6
    )


def cost(shape: ScheduleShape, needed: Needed) -> float:
    return float(needed.sum() + shape.start * np.maximum(0, np.diff(needed)).sum())


cases = st.integers(2, 5).flatmap(
    lambda count: st.tuples(
        st.lists(st.integers(1, 6), min_size=count, max_size=count),
        st.lists(st.integers(0, 30), min_size=count, max_size=count),
        st.lists(st.integers(0, 10), min_size=count, max_size=count),
    )
)


@settings(max_examples=60)
@given(cases, st.integers(0, 40))
def test_no_choice_with_as_few_misses_is_cheaper_than_the_best_by_more_than_the_price_says(
    case: tuple[list[int], list[int], list[int]], allowed: int
) -> None:
    shape = shape_of(*case)
    needed, foreseen = reshaped(shape, allowed)
    assert foreseen <= allowed
    assert needed.min() >= 1
    assert needed.max() <= 6
    assert np.abs(needed - shape.needed).max() <= 1
    effects = np.stack([shape.lower, np.zeros(len(shape.lower)), shape.upper])
    for steps in itertools.product((-1, 0, 1), repeat=len(shape.lower)):
        other = shape.needed + np.array(steps)[shape.window]
        misses = float(effects[np.array(steps) + 1, np.arange(len(steps))].sum())
        if other.min() >= 1 and other.max() <= 6 and misses <= foreseen:
            assert (
                cost(shape, other) >= cost(shape, needed) - 1e-6
            )  # the optimum at a price is the cheapest of those with no more misses


def test_what_costs_no_miss_goes() -> None:
    needed, foreseen = reshaped(shape_of([3, 3, 3, 3], [0, 0, 0, 0], [0, 0, 0, 0]), 0)
    assert (needed == 2).all()
    assert foreseen == 0


def test_a_dip_that_is_cheaper_to_keep_is_kept() -> None:
    needed, _ = reshaped(shape_of([3, 3, 3], [50, 0, 50], [0, 0, 0], start=10.0), 0)
    assert (needed == 3).all()
    needed, _ = reshaped(shape_of([3, 3, 3], [50, 0, 50], [0, 0, 0], start=1.0), 0)
    assert needed.tolist() == [3, 3, 3, 2, 2, 2, 3, 3, 3]


priced = st.lists(st.tuples(st.integers(-12, 12).filter(bool), st.integers(-10, 10)), max_size=12)


@given(priced, st.integers(0, 30))
def test_the_charges_together_are_allowed_and_what_is_free_is_taken(
    changes: list[tuple[int, int]], allowed: int
) -> None:
    costs, charges = [cost for cost, _ in changes], [charge for _, charge in changes]
    chosen = affordable(costs, charges, allowed)
    assert sum(charges[index] for index in chosen) <= allowed
    if sum(charge for cost, charge in changes if cost < 0 and charge > 0) <= allowed:
        assert set(chosen) >= {index for index, (cost, charge) in enumerate(changes) if cost < 0 and charge <= 0}


def test_the_best_by_misses_are_taken_first() -> None:
    assert affordable([-6, -6, -6], [3, 1, 9], 4) == [1, 0]
    assert affordable([-6, 3], [5, -5], 0) == [0, 1]


@given(st.lists(st.integers(0, 5), min_size=10, max_size=80), st.sampled_from([1, 3, 6]), st.integers(0, 5))
def test_cuts_lower_and_raises_raise_within_the_bounds(levels: list[int], width: int, seed: int) -> None:
    needed = np.array(levels)
    rng = np.random.default_rng(seed)
    found = apart(
        [*raises(needed, rng.integers(0, 9, len(levels)).astype(np.float64), 5, width), *cuts(needed, 1, width, rng)]
    )
    new = changed(needed, found)
    assert new.min() >= min(1, needed.min())
    assert new.max() <= 5
    taken = sorted((change.begin, change.end) for change in found)
    assert all(end + AROUND <= begin for (_, end), (begin, _) in pairwise(taken))
    assert int((new - needed).sum()) == sum(change.replica_bins for change in found)
