"""Rate, noise and trend of what arrives, and how much of a surge stays."""

import pickle
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoscaling.policies.backlog.demand import Demand, Persistence, PooledHeadroom, slope
from tests.autoscaling.scaler.moments import moment


def fed(rates: list[float], level_s: float = 60.0, noise: float = 0.0, seed: int = 0) -> tuple[Demand, float]:
    """A second at each rate."""
    demand, work, rng = Demand(level_s), 0.0, np.random.default_rng(seed)
    demand.look(moment(0.0))
    for second, rate in enumerate(rates, 1):
        work += max(0.0, rate + noise * rng.standard_normal())
        demand.look(moment(float(second), arrived_work=work))
    return demand, float(len(rates))


def test_a_steady_rate_is_found_without_noise_or_trend() -> None:
    demand, _ = fed([100.0] * 400)
    assert demand.rate == pytest.approx(100.0)
    assert demand.noise == pytest.approx(0.0, abs=1e-6)
    assert demand.trend == 0.0


def test_a_surge_is_seen_long_before_the_level_has_it() -> None:
    demand, _ = fed([100.0] * 300 + [1_000.0] * 12)
    assert demand.rate > 500.0


def test_noise_alone_is_no_surge() -> None:
    demand, _ = fed([100.0] * 600, noise=60.0)
    assert demand.rate == pytest.approx(100.0, rel=0.35)
    assert demand.trend == pytest.approx(0.0, abs=0.2)


def test_a_slope_is_a_trend_and_a_step_is_none() -> None:
    slope, _ = fed([100.0 + 0.5 * second for second in range(600)])
    assert slope.trend == pytest.approx(0.5, rel=0.1)
    step, _ = fed([100.0] * 400 + [300.0] * 110)
    assert step.trend == 0.0


def test_counters_that_begin_anew_are_no_negative_work() -> None:
    demand, now = fed([100.0] * 100)
    demand.look(moment(now + 1, arrived_work=50.0, epoch=2))
    assert 90.0 < demand.rate < 110.0


def test_a_policy_that_is_asked_seldom_gets_the_same_level() -> None:
    seldom = Demand(60.0)
    for second in range(0, 301, 15):
        seldom.look(moment(float(second), arrived_work=100.0 * second))
    assert seldom.rate == pytest.approx(100.0, rel=0.02)


def test_what_was_there_before_the_first_look_is_not_new() -> None:
    demand = Demand(60.0)
    demand.look(moment(0.0, arrived_work=1e9))
    demand.look(moment(6.0, arrived_work=1e9 + 600))
    assert demand.rate == pytest.approx(100.0)


def test_an_even_climb_is_a_trend() -> None:
    assert slope([10.0 + 2.0 * index for index in range(24)], variance=1.0) == pytest.approx(2.0)


@pytest.mark.parametrize("at", [4, 12, 20])
def test_a_step_is_none_wherever_it_happened(at: int) -> None:
    assert slope([10.0] * at + [60.0] * (24 - at), variance=1.0) == 0.0


def test_noise_is_none() -> None:
    rng = np.random.default_rng(1)
    assert [slope(rng.normal(50.0, 5.0, 48).tolist(), variance=25.0) for _ in range(50)] == [0.0] * 50


@given(st.lists(st.floats(0, 1e6), min_size=6, max_size=48), st.floats(1e-3, 1e6))
def test_what_falls_is_what_climbs_turned_round(x: list[float], variance: float) -> None:
    assert slope(x[::-1], variance) == pytest.approx(-slope(x, variance), rel=1e-6, abs=1e-6)


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


def test_headroom_that_peers_have_is_counted_on_average() -> None:
    pooled = PooledHeadroom(0.0)
    for second in range(1, 601):
        spare = pooled.look(replace(moment(float(second)), peers_spare=2.0 if second % 2 else 0.0), 60.0)
    assert spare == pytest.approx(1.0, rel=0.05)
    assert pooled.left_of(1.5) == pytest.approx(1.5 - spare)
    assert pooled.left_of(0.2) == 0.0, "never less than the expected demand needs"
    for second in range(601, 661):
        spare = pooled.look(moment(float(second)), 60.0)
    assert spare == pytest.approx(0.5, rel=0.05), "half of it is forgotten in a start-up time"
