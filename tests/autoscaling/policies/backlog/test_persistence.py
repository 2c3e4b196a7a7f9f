"""Surges that stay, surges that go, and what is counted on after some of them."""

import pickle

import pytest

from autoscaling.policies.backlog.demand import Demand
from autoscaling.policies.backlog.persistence import Persistence
from tests.autoscaling.scaler.moments import moment

REPLICA_PER_S = 1_000.0
START_S = 60.0


def lived(phases: list[tuple[float, int]]) -> Persistence:
    """Rates of so many seconds each, one after the other."""
    demand, persistence, work, now = Demand(600.0), Persistence(), 0.0, 0.0
    demand.look(moment(0.0))
    for rate, seconds in phases:
        for _ in range(seconds):
            now, work = now + 1.0, work + rate
            demand.look(moment(now, arrived_work=work))
            persistence.look(moment(now, arrived_work=work), demand, START_S, REPLICA_PER_S)
    return persistence


def test_before_any_surge_all_of_one_is_counted_on() -> None:
    assert lived([(2_000.0, 900)]).share(20.0) == pytest.approx(1.0)


def test_salvos_that_are_over_soon_are_counted_on_less_and_less() -> None:
    shares = [lived([(2_000.0, 900), *[(9_000.0, 20), (2_000.0, 400)] * salvos]).share(20.0) for salvos in (0, 2, 8)]
    assert shares == sorted(shares, reverse=True)
    assert shares[-1] < 0.3


def test_crowds_that_stay_are_counted_on() -> None:
    assert lived([(2_000.0, 900), *[(6_000.0, 1_200), (2_000.0, 1_200)] * 3]).share(20.0) > 0.9


def test_it_is_a_share_whatever_comes() -> None:
    for phases in ([(0.0, 300), (50_000.0, 5), (0.0, 600)] * 3, [(100.0, 60), (90_000.0, 600)]):
        persistence = lived(phases)
        assert all(0.0 <= persistence.share(span_s) <= 1.0 for span_s in (5.0, 600.0))


def test_counts_that_begin_anew_judge_nothing() -> None:
    demand, persistence = Demand(600.0), Persistence()
    work = 1e6
    for second in range(400):
        work = 0.0 if second == 200 else work + (9_000.0 if second > 190 else 2_000.0)
        demand.look(moment(float(second), arrived_work=work))
        persistence.look(moment(float(second), arrived_work=work), demand, START_S, REPLICA_PER_S)
    assert persistence.share(20.0) > 0.9


def test_without_a_replicas_capacity_there_is_no_measure() -> None:
    demand, persistence = Demand(600.0), Persistence()
    for second in range(300):
        demand.look(moment(float(second), arrived_work=2_000.0 * second))
        persistence.look(moment(float(second), arrived_work=2_000.0 * second), demand, START_S, None)
    assert persistence.share(20.0) == 1.0


def test_what_it_remembers_does_not_grow_with_the_time() -> None:
    sizes = [len(pickle.dumps(lived([(0.0, seconds)]))) for seconds in (600, 6_000)]
    assert sizes[0] == sizes[1]
