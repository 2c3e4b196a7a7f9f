"""How much work arrives: its rate, its noise, its trend. From cumulative counts, in buckets of a few seconds.

level    = work of the last level_s seconds / level_s
surge    = max over shorter spans s of r(s) - TELLING * sqrt(r(s) * D / s)       r(s): work of the last s seconds / s; what is surely more
rate     = max(level, surge)
noise    D = mean((x[i] - x[i-1])^2) / 2 / mean(x),  x: work by bucket           index of dispersion, blind to slow change (von Neumann, 1941)
error    = sqrt(rate * D / level_s)                                              of the rate
trend    = slope of the least squares line through the buckets, where it is more than TELLING standard errors from zero, else 0; of the last two
           and of the last four minutes, the one nearer to zero, since a step is no trend
"""

import math
from collections import deque
from itertools import pairwise

from autoscaling.signals.signals import Signals

BUCKET_S = 5.0
KEPT = 120
_TREND_BUCKETS = (24, 48)
_SURGE_BUCKETS = (1, 2, 3, 4, 6, 9)
TELLING = 2.5


class Demand:
    """The last ten minutes."""

    def __init__(self, level_s: float) -> None:
        self._level = max(1, round(level_s / BUCKET_S))
        self._epoch: int | None = None
        self._last_work = 0.0
        self._open_since_s = 0.0
        self._open = 0.0
        self._buckets: deque[float] = deque(maxlen=KEPT)
        self._trend = 0.0
        self._noise = 0.0
        self._level_sum = 0.0
        self._recent: list[tuple[float, float]] = []
        self.last_arrival_s = -math.inf
        """When something last arrived."""

    def look(self, signals: Signals) -> None:
        """Takes a moment into account. After a restart of the scheduler's counts only what is new counts."""
        now, work = signals.at_s, signals.arrived_work
        if self._epoch != signals.epoch or work < self._last_work:
            new = 0.0 if self._epoch is None else work
            if self._epoch is None:
                self._open_since_s = now
            self._epoch = signals.epoch
        else:
            new = work - self._last_work
        self._last_work = work
        if new > 0:
            self.last_arrival_s = now
        passed = now - self._open_since_s
        self._open += new
        if passed >= BUCKET_S:
            count = int(passed // BUCKET_S)
            for _ in range(min(count, KEPT)):  # a law that is asked seldom fills several at once, evenly
                self._buckets.append(self._open / count)
            self._open, self._open_since_s = 0.0, self._open_since_s + count * BUCKET_S
            self._close()

    def average_over(self, level_s: float) -> None:
        """The level is that of so many seconds from now on."""
        self._level = max(1, round(level_s / BUCKET_S))
        if self._buckets:
            self._close()

    def rate(self, now: float) -> float:
        """Work a second, now."""
        open_s = now - self._open_since_s
        span = min(self._level, len(self._buckets)) * BUCKET_S + open_s
        level = (self._level_sum + self._open) / span if span > 0 else 0.0
        return max([level, *(self._surely(work + self._open, span_s + open_s) for span_s, work in self._recent)])

    def _surely(self, work: float, span_s: float) -> float:
        rate = work / span_s
        return rate - TELLING * math.sqrt(rate * self._noise / span_s)

    def recent(self, now: float) -> float:
        """Work a second in the last few seconds: what a burst looks like at once."""
        last = self._buckets[-1] if self._buckets else 0.0
        return (last + self._open) / (BUCKET_S * bool(self._buckets) + now - self._open_since_s + 1e-9)

    @property
    def noise(self) -> float:
        """The index of dispersion D (work)."""
        return self._noise

    @property
    def trend(self) -> float:
        """By how much the rate changes a second; 0 where that is not telling."""
        return self._trend

    def _close(self) -> None:
        buckets = list(self._buckets)
        self._level_sum = sum(buckets[-self._level :])
        self._recent = [(n * BUCKET_S, sum(buckets[-n:])) for n in _SURGE_BUCKETS if n < min(self._level, len(buckets))]
        mean = sum(buckets) / len(buckets)
        if len(buckets) < 6 or mean <= 0:
            self._noise = self._trend = 0.0
            return
        variance = sum((b - a) ** 2 for a, b in pairwise(buckets)) / (2 * (len(buckets) - 1))
        self._noise = variance / mean
        slopes = [_slope(buckets[-count:], variance) for count in _TREND_BUCKETS]
        self._trend = 0.0 if min(slopes) < 0 < max(slopes) else min(slopes, key=abs)


def _slope(x: list[float], variance: float) -> float:
    """Of the line through values that are BUCKET_S apart, in rate a second."""
    n = len(x)
    middle = (n - 1) / 2
    spread = n * (n * n - 1) / 12
    slope = sum((index - middle) * value for index, value in enumerate(x)) / spread
    if abs(slope) < TELLING * math.sqrt(variance / spread):
        return 0.0
    return slope / BUCKET_S / BUCKET_S
