"""Loads: how many requests, when, and how long."""

from dataclasses import replace

import numpy as np
import pytest

from cli.bench.load import BenchLoad, drawn_load, traced_load
from planning.workload.changes import ChangeKind
from planning.workload.lengths import Fixed, Uniform
from planning.workload.traces import Trace

TRACE = Trace(np.array([0.0, 1.0, 4.0]), np.array([10, 20, 30]), np.array([1, 2, 3]))


def test_an_open_loop_has_a_time_for_each_request() -> None:
    load = drawn_load(Uniform(1, 9), Fixed(3), seed=1, rate=10, requests=50)
    assert load.arrivals_s is not None
    assert len(load.arrivals_s) == len(load.prompt_tokens) == 50


def test_an_open_loop_of_a_duration_ends_with_it() -> None:
    load = drawn_load(Fixed(1), Fixed(1), seed=1, rate=100, duration_s=2)
    assert load.arrivals_s is not None
    assert load.arrivals_s.max() < 2
    assert len(load.arrivals_s) == pytest.approx(200, abs=60)


def test_a_closed_loop_of_a_duration_goes_round_its_lengths() -> None:
    load = drawn_load(Uniform(1, 1_000), Fixed(1), seed=1, concurrency=4, duration_s=2)
    assert load.arrivals_s is None
    assert load.requests is None
    assert load.lengths(5) == load.lengths(5 + len(load.prompt_tokens))


def test_a_trace_keeps_its_times() -> None:
    load = traced_load(TRACE, seed=0)
    assert load.arrivals_s is not None
    assert list(load.arrivals_s) == [0, 1.0, 4.0]
    assert [load.lengths(index) for index in range(3)] == [(10, 1), (20, 2), (30, 3)]


def test_a_trace_can_be_cut_by_number_and_by_time() -> None:
    by_number, by_time = traced_load(TRACE, seed=0, requests=2), traced_load(TRACE, seed=0, duration_s=3)
    assert by_number.arrivals_s is not None
    assert by_time.arrivals_s is not None
    assert list(by_number.arrivals_s) == list(by_time.arrivals_s) == [0, 1]


def test_a_trace_gives_only_its_lengths_to_a_rate_or_a_concurrency() -> None:
    assert traced_load(TRACE, seed=0, concurrency=2).arrivals_s is None
    paced = traced_load(TRACE, seed=0, rate=1_000)
    assert paced.arrivals_s is not None
    assert paced.arrivals_s[-1] < 1


def test_the_same_seed_gives_the_same_load() -> None:
    first, second = (drawn_load(Uniform(1, 99), Uniform(1, 99), seed=7, rate=5, requests=20) for _ in range(2))
    assert first.arrivals_s is not None
    assert second.arrivals_s is not None
    assert (first.prompt_tokens == second.prompt_tokens).all()
    assert (first.arrivals_s == second.arrivals_s).all()


def changes(load: BenchLoad) -> list[tuple[ChangeKind, int]]:
    return [(one.kind, one.count) for one in load.changes]


def test_what_is_not_sent_as_it_was_recorded_is_noted() -> None:
    assert changes(traced_load(TRACE, seed=0)) == []
    assert changes(traced_load(TRACE, seed=0, duration_s=2)) == [(ChangeKind.BEYOND_LIMIT, 1)]
    paced = traced_load(replace(TRACE, session=np.arange(3)), seed=0, concurrency=2)
    assert changes(paced) == [(ChangeKind.TIMES_REPLACED, 3), (ChangeKind.ONLY_LENGTHS_USED, 3)]
    assert "session" in paced.changes[-1].what
