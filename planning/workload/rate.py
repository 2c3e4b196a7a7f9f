"""How many requests a second come, over time: a curve by the time of day, weekdays that differ, and spikes. Pure.

The rate is linear between breakpoints and may jump at them, so its integral Lambda(t), the expected number of requests, is known exactly, and so is
the inverse: x seconds into a piece that begins at Lambda = L with rate r and slope s, d = Lambda - L = r x + s x^2 / 2, hence
x = 2 d / (r + sqrt(r^2 + 2 s d)), which holds for s = 0 too.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from planning.workload.arrivals import FloatArray

DAY_H = 24.0
HOUR_S = 3_600.0


@dataclass(frozen=True, slots=True)
class Spike:
    """`factor` times the rate, for `length_s` seconds from `at_s` on."""

    at_s: float
    length_s: float
    factor: float


@dataclass(frozen=True, slots=True)
class Clock:
    """When second 0 is: the hour of the day (0 to 24), and the weekday (0: Monday). Hours below 0 and above 24 are of the day before and after."""

    hour: float = 0.0
    weekday: int = 0


_MIDNIGHT = Clock()


@dataclass(frozen=True, slots=True)
class Rate:
    """Requests a second. `edges_s` cut the time into pieces; the rate goes linearly from `left` to `right` over each.

    `before`: expected requests until each edge.
    """

    edges_s: FloatArray
    left: FloatArray
    right: FloatArray
    before: FloatArray

    @property
    def expected_requests(self) -> float:
        """How many requests come in all, on average."""
        return float(self.before[-1])

    def expected(self, at_s: FloatArray) -> FloatArray:
        """How many requests come until those seconds, on average."""
        piece = np.clip(np.searchsorted(self.edges_s, at_s, side="right") - 1, 0, len(self.left) - 1)
        into = at_s - self.edges_s[piece]
        until: FloatArray = self.before[piece] + self.left[piece] * into + self._slope(piece) * into**2 / 2
        return until

    def when(self, requests: FloatArray) -> FloatArray:
        """The seconds at which so many requests (from 0 to below `expected_requests`) are expected to have come."""
        piece = np.clip(np.searchsorted(self.before, requests, side="right") - 1, 0, len(self.left) - 1)
        wanted, left = requests - self.before[piece], self.left[piece]
        root = np.sqrt(np.maximum(left**2 + 2 * self._slope(piece) * wanted, 0))
        into = np.divide(2 * wanted, left + root, out=np.zeros_like(wanted), where=left + root > 0)
        at_s: FloatArray = np.minimum(self.edges_s[piece] + into, self.edges_s[piece + 1])
        return at_s

    def _slope(self, piece: NDArray[np.intp]) -> FloatArray:
        slope: FloatArray = (self.right[piece] - self.left[piece]) / (self.edges_s[piece + 1] - self.edges_s[piece])
        return slope


def day_rate(
    knots: Sequence[tuple[float, float]],
    duration_s: float,
    clock: Clock = _MIDNIGHT,
    weekdays: Sequence[float] = (1.0,) * 7,
    spikes: Sequence[Spike] = (),
    factor: float = 1.0,
) -> Rate:
    """The rate over `duration_s` seconds.

    `knots` are (hour of the day, requests a second), ascending by hour, joined by lines, around midnight too; one knot is a constant rate. `weekdays`
    are factors, Monday first.
    """
    hours = np.array([hour for hour, _ in knots])
    rates = np.array([rate for _, rate in knots])
    first_day = math.floor(clock.hour / DAY_H)
    days = range(first_day, math.ceil((clock.hour + duration_s / HOUR_S) / DAY_H) + 1)
    at_knots = [(day * DAY_H + hour - clock.hour) * HOUR_S for day in days for hour in (0.0, *hours)]
    at_spikes = [edge for spike in spikes for edge in (spike.at_s, spike.at_s + spike.length_s)]
    inner = [edge for edge in (*at_knots, *at_spikes) if 0 < edge < duration_s]
    edges = np.unique(np.array([0.0, *inner, duration_s]))
    base = factor * np.interp((clock.hour + edges / HOUR_S) % DAY_H, hours, rates, period=DAY_H)
    middle = (edges[:-1] + edges[1:]) / 2
    factors = np.array(weekdays)[(clock.weekday + np.floor((clock.hour + middle / HOUR_S) / DAY_H).astype(np.int64)) % 7]
    for spike in spikes:
        factors = np.where((spike.at_s <= middle) & (middle < spike.at_s + spike.length_s), factors * spike.factor, factors)
    left, right = base[:-1] * factors, base[1:] * factors
    before = np.concatenate([[0.0], np.cumsum((left + right) / 2 * np.diff(edges))])
    return Rate(edges, left, right, before)
