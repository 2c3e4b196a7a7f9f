"""When requests come. Pure.

At an even rate they are Poisson. A rate that changes (`RateCurve`) is linear between breakpoints and may jump at them,
so its integral Lambda(t), the expected number of requests, is known exactly, and so is the inverse: x seconds into a
piece that begins at Lambda = L with rate r and slope s, d = Lambda - L = r x + s x^2 / 2, hence x = 2 d / (r + sqrt(r^2
+ 2 s d)), which holds for s = 0 too.

Arrivals at such a rate are a renewal process of unit rate, read on the rate's own clock: if S1 < S2 < ... are its
points, Lambda^-1(S1) < Lambda^-1(S2) < ... come at the rate Lambda'(t), and keep the gaps' burstiness (I. Gerhardt, B.
L. Nelson: Transforming Renewal Processes for Simulation of Nonstationary Arrival Processes, INFORMS Journal on
Computing 21(4), 2009). The first gap is of the equilibrium distribution, as if the process had been running for ever: a
length-biased gap times a uniform number. Then the number of requests is Lambda on average, exactly.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from cluster.spec.base import no_truth_values

FloatArray = NDArray[np.float64]


def poisson_arrivals(rate: float, count: int, rng: np.random.Generator) -> FloatArray:
    """The times, in seconds after the start and in order, at which `count` requests are sent."""
    return np.cumsum(rng.exponential(1 / rate, size=count))


def arrivals_within(rate: float, duration_s: float, rng: np.random.Generator) -> FloatArray:
    """The times of all requests that are sent in the first `duration_s` seconds; at least one."""
    block = max(16, math.ceil(rate * duration_s))
    times = poisson_arrivals(rate, block, rng)
    while times[-1] < duration_s:
        times = np.concatenate([times, times[-1] + poisson_arrivals(rate, block, rng)])
    within: FloatArray = times[times < duration_s]
    return within if len(within) else np.zeros(1)


DAY_H = 24.0
HOUR_S = 3_600.0


Factor = Annotated[float, Field(ge=0, le=1_000)]
Second = Annotated[float, Field(ge=0, le=31_622_400)]


@dataclass(frozen=True, slots=True)
class Spike:
    """`factor` times the rate for `length_s` seconds from second `at_s` of the traffic on, in all regions at once."""

    at_s: Second
    length_s: Annotated[float, Field(gt=0, le=31_622_400)]
    factor: Factor
    _no_truth_values = no_truth_values


@dataclass(frozen=True, slots=True)
class WallClock:
    """When second 0 is: the hour of the day (0 to 24), and the weekday (0: Monday). Hours below 0 and above 24 are of
    the day before and after."""

    hour: float = 0.0
    weekday: int = 0


_MIDNIGHT = WallClock()


@dataclass(frozen=True, slots=True)
class RateCurve:
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
        desired, left = requests - self.before[piece], self.left[piece]
        root = np.sqrt(np.maximum(left**2 + 2 * self._slope(piece) * desired, 0))
        into = np.divide(2 * desired, left + root, out=np.zeros_like(desired), where=left + root > 0)
        at_s: FloatArray = np.minimum(self.edges_s[piece] + into, self.edges_s[piece + 1])
        return at_s

    def _slope(self, piece: NDArray[np.intp]) -> FloatArray:
        slope: FloatArray = (self.right[piece] - self.left[piece]) / (self.edges_s[piece + 1] - self.edges_s[piece])
        return slope


def day_rate(
    knots: Sequence[tuple[float, float]],
    duration_s: float,
    clock: WallClock = _MIDNIGHT,
    weekdays: Sequence[float] = (1.0,) * 7,
    spikes: Sequence[Spike] = (),
    factor: float = 1.0,
) -> RateCurve:
    """The rate over `duration_s` seconds.

    `knots` are (hour of the day, requests a second), ascending by hour, joined by lines, around midnight too; one knot
    is a constant rate. `weekdays` are factors, Monday first.
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
    factors = np.array(weekdays)[
        (clock.weekday + np.floor((clock.hour + middle / HOUR_S) / DAY_H).astype(np.int64)) % 7
    ]
    for spike in spikes:
        factors = np.where(
            (spike.at_s <= middle) & (middle < spike.at_s + spike.length_s), factors * spike.factor, factors
        )
    left, right = base[:-1] * factors, base[1:] * factors
    before = np.concatenate([[0.0], np.cumsum((left + right) / 2 * np.diff(edges))])
    return RateCurve(edges, left, right, before)


GapKind = Literal["gamma", "weibull"]


def gaps(kind: GapKind, shape: float, count: int, rng: np.random.Generator) -> FloatArray:
    """Independent gaps of mean 1. Shape 1 is Poisson for both kinds; below 1 requests come in bursts, above 1
    evenly."""
    if kind == "gamma":
        return rng.gamma(shape, 1 / shape, size=count)
    return rng.weibull(shape, size=count) / math.gamma(1 + 1 / shape)


def first_gap(kind: GapKind, shape: float, rng: np.random.Generator) -> float:
    """The time to the first point of a process that has been running for ever."""
    if kind == "gamma":  # x f(x) of a Gamma(k) is a Gamma(k + 1)
        biased = rng.gamma(shape + 1, 1 / shape)
    else:  # and of a Weibull(k) it is the power 1/k of a Gamma(1 + 1/k)
        biased = rng.gamma(1 + 1 / shape) ** (1 / shape) / math.gamma(1 + 1 / shape)
    return float(biased * rng.random())


def unit_points(kind: GapKind, shape: float, until: float, rng: np.random.Generator) -> FloatArray:
    """The points, below `until`, of a renewal process with mean gap 1."""
    points = np.array([first_gap(kind, shape, rng)])
    block = math.ceil(1.05 * until) + 64
    while points[-1] < until:
        points = np.concatenate([points, points[-1] + np.cumsum(gaps(kind, shape, block, rng))])
    return points[points < until]


def renewal_arrivals(rate: RateCurve, kind: GapKind, shape: float, rng: np.random.Generator) -> FloatArray:
    """The seconds, in order, at which requests come at that rate."""
    return rate.when(unit_points(kind, shape, rate.expected_requests, rng))
