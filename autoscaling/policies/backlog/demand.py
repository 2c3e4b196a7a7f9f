"""How much work arrives: its rate, its noise, its trend. From cumulative counts, in buckets of a few seconds.

    noise    D = mean((x[i] - x[i-1])^2) / 2 / mean(x),  x: work by bucket           index of dispersion, blind to slow
             change (von Neumann, 1941); of ten minutes, averaged over the last hours: how bursty clients are changes
             slowly, and one measurement of it is rough
    r(s)     work of the last s seconds / s, with half-width h(s) = DOUBT * (sqrt(r * D / s) + D / s)              s: 5,
             10, 15 ... 600 s
    span     the longest s whose interval r(s) +- h(s) meets those of all shorter ones
    rate     r(span), with standard error sqrt(rate * D / span)
    trend    slope of the line through the buckets, where they climb or fall evenly (`trend.py`), else 0; of the last
             two and of the last four minutes, the one nearer to zero

The span is chosen by the intersection of confidence intervals (Goldenshluger and Nemirovski, 1997): long while nothing
changes, so that the rate is steady, and short at once when something does, up or down.
"""

import math
from collections import deque
from itertools import pairwise

from autoscaling.policies.backlog.trend import slope
from autoscaling.signals.signals import Signals

BUCKET_S = 5.0
KEPT = 120
DOUBT = 1.5
_NOISE_WEIGHT = BUCKET_S / 3_600.0
_SPANS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 36, 54, 80, KEPT)
_TREND_BUCKETS = (24, 48)
_MIN = 6


class Demand:
    """The last ten minutes. `level_s`: no span is longer."""

    def __init__(self, level_s: float) -> None:
        maximum = max(1, round(level_s / BUCKET_S))
        self._spans = (*(span for span in _SPANS if span < maximum), maximum)
        self._epoch: int | None = None
        self._last_work = 0.0
        self._open_since_s = 0.0
        self._open = 0.0
        self._buckets: deque[float] = deque(maxlen=KEPT)
        self.last_arrival_s = -math.inf
        """When something last arrived."""
        self.rate = 0.0
        """Work a second."""
        self.span_s = BUCKET_S
        self.usual = 0.0
        """Work a second, over all that is kept."""
        self._measured = 0
        self.noise = 0.0
        """The index of dispersion D (work)."""
        self.trend = 0.0
        """By how much the rate changes a second; 0 where that is not telling."""

    def averaged_over(self, level_s: float) -> "Demand":
        """The same, averaged over another span from now on."""
        other = Demand(level_s)
        vars(other).update({name: value for name, value in vars(self).items() if name != "_spans"})
        return other

    @property
    def error(self) -> float:
        """Standard error of the rate."""
        return math.sqrt(self.rate * self.noise / self.span_s)

    @property
    def usual_error(self) -> float:
        """Standard error of the usual rate."""
        return math.sqrt(self.usual * self.noise / (BUCKET_S * max(1, len(self._buckets))))

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
            even = self._open * BUCKET_S / passed  # whoever is asked seldom fills several at once
            self._buckets.extend([even] * min(count, KEPT))
            self._open -= even * count
            self._open_since_s += count * BUCKET_S
            self._close()
        elif not self._buckets and passed > 0:
            self.rate = self._open / passed

    def _close(self) -> None:
        buckets = list(self._buckets)
        mean = sum(buckets) / len(buckets)
        self.usual = mean / BUCKET_S
        if len(buckets) < _MIN or mean <= 0:
            self.rate, self.span_s, self.trend = mean / BUCKET_S, len(buckets) * BUCKET_S, 0.0
            return
        variance = sum((b - a) ** 2 for a, b in pairwise(buckets)) / (2 * (len(buckets) - 1))
        self._average_noise(variance / mean)
        self._choose_span(buckets, mean / BUCKET_S)
        slopes = [slope(buckets[-count:], variance) / BUCKET_S / BUCKET_S for count in _TREND_BUCKETS]
        self.trend = 0.0 if min(slopes) < 0 < max(slopes) else min(slopes, key=abs)

    def _average_noise(self, measured: float) -> None:
        self._measured += 1
        weight = max(_NOISE_WEIGHT, 1.0 / self._measured)
        self.noise += weight * (measured - self.noise)

    def _choose_span(self, buckets: list[float], usual: float) -> None:
        low, high, work, taken = -math.inf, math.inf, 0.0, 0
        for span in self._spans:
            if span > len(buckets) and taken:
                return
            work += sum(buckets[-span : len(buckets) - taken])
            taken, seconds = min(span, len(buckets)), span * BUCKET_S
            rate = work / (taken * BUCKET_S)
            half = DOUBT * (math.sqrt(max(rate, usual) * self.noise / seconds) + self.noise / seconds)
            low, high = max(low, rate - half), min(high, rate + half)
            if low > high:
                return
            self.rate, self.span_s = rate, taken * BUCKET_S
