import numpy as np
import pytest

from autoscaling.policies.backlog.demand import Demand
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
