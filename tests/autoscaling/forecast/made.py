"""Traffic with a day and a week in it, for the tests of forecasts."""

import numpy as np

from autoscaling.forecast.history import A_DAY, STEP_S, FloatArray, History
from autoscaling.signals.signals import Signals
from deployments.scheduling.snapshot import FlowStats
from tests.autoscaling.facts import signals_like

MONDAY = 1_767_571_200.0
"""2026-01-05 00:00 UTC."""


def expected(steps: int, weekend: float = 0.5) -> FloatArray:
    """Work a second by step from a Monday on: a busy afternoon, a quiet night, a weekend that is so much quieter."""
    step = np.arange(steps)
    day = 1_000 + 800 * np.sin(2 * np.pi * (step / A_DAY - 0.35))
    return np.asarray(day * np.where(step // A_DAY % 7 >= 5, weekend, 1.0))


def recorded(steps: int, noise: float = 0.05, seed: int = 0) -> FloatArray:
    """The same with noise that grows with the root of the rate."""
    mean, rng = expected(steps), np.random.default_rng(seed)
    return np.asarray(np.maximum(0.0, mean + noise * np.sqrt(1_000 * mean) * rng.standard_normal(steps)))


def history(rates: FloatArray) -> History:
    """From that Monday on."""
    return History(int(MONDAY // STEP_S), tuple(rates.tolist()))


def moment(unix_s: float, work: float, epoch: int = 1) -> Signals:
    """Signals in which so much work has arrived."""
    flow = FlowStats("short", "interactive", 0, work, 0, 0, 0, 1.0)
    return signals_like(unix_s, unix_s, 0.0, epoch, 1, 0, None, (), (), (flow,), 0, 0.0, 0, 0)
