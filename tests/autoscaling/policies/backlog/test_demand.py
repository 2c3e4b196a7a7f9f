"""Rate and noise of what arrives, and what peers take off the headroom."""

from dataclasses import replace

import numpy as np
import pytest

from autoscaling.policies.backlog.demand import Demand, PooledHeadroom
from tests.autoscaling.scaler.moments import moment


def fed(rates: list[float], noise: float = 0.0, seed: int = 0) -> tuple[Demand, float]:
    """A second at each rate."""
    demand, work, rng = Demand(), 0.0, np.random.default_rng(seed)
    demand.look(moment(0.0), 5.0)
    for second, rate in enumerate(rates, 1):
        work += max(0.0, rate + noise * rng.standard_normal())
        demand.look(moment(float(second), arrived_work=work), 5.0)
    return demand, float(len(rates))


def test_a_steady_rate_is_found_without_noise() -> None:
    demand, _ = fed([100.0] * 400)
    assert demand.rate == pytest.approx(100.0)
    assert demand.noise == pytest.approx(0.0, abs=1e-6)


def test_a_surge_is_seen_long_before_the_average_has_it() -> None:
    demand, _ = fed([100.0] * 300 + [1_000.0] * 30)
    assert demand.rate > 500.0


def test_noise_alone_is_no_surge() -> None:
    demand, _ = fed([100.0] * 600, noise=60.0)
    assert demand.rate == pytest.approx(100.0, rel=0.1)


def test_counters_that_begin_anew_are_no_negative_work() -> None:
    demand, now = fed([100.0] * 100)
    demand.look(moment(now + 1, arrived_work=50.0, epoch=2), 5.0)
    assert 90.0 < demand.rate < 110.0


def test_a_policy_that_is_asked_seldom_gets_the_same_rate() -> None:
    seldom = Demand()
    for second in range(0, 301, 15):
        seldom.look(moment(float(second), arrived_work=100.0 * second), 5.0)
    assert seldom.rate == pytest.approx(100.0, rel=0.02)


def test_what_was_there_before_the_first_look_is_not_new() -> None:
    demand = Demand()
    demand.look(moment(0.0, arrived_work=1e9), 5.0)
    demand.look(moment(6.0, arrived_work=1e9 + 600), 5.0)
    assert demand.rate == pytest.approx(100.0)


def test_headroom_that_peers_have_is_counted_on_average() -> None:
    pooled = PooledHeadroom(0.0)
    for second in range(1, 601):
        spare = pooled.look(replace(moment(float(second)), peers_spare=2.0 if second % 2 else 0.0), 60.0)
    assert spare == pytest.approx(1.0, rel=0.05)
    for second in range(601, 661):
        spare = pooled.look(moment(float(second)), 60.0)
    assert spare == pytest.approx(0.5, rel=0.05), "half of it is forgotten in a start-up time"
