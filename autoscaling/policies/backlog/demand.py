"""How much work arrives: its rate, noise and trend, from cumulative counts in buckets of a few seconds; and how much of
a surge stays.

    noise    D = mean((x[i] - x[i-1])^2) / 2 / mean(x), x: work by bucket. An index of dispersion that slow changes do
             not affect (von Neumann, 1941). Measured over ten minutes and averaged over the last hours, because how
             bursty clients are changes slowly, and one measurement is rough
    r(s)     work of the last s seconds / s, s = 5, 10, 15 ... 600 s, with half-width
             h(s) = DOUBT * (sqrt(r * D / s) + D / s)
    span     the longest s whose interval r(s) +- h(s) meets those of all shorter ones
    rate     r(span), with standard error sqrt(rate * D / span)
    trend    slope of the least squares line through the buckets where it is significant: more than SIGNIFICANT standard
             errors from zero, and the line explains at least as much of the variance as a step between two levels
             (wherever that fits best); else 0. A step has already happened, so extrapolating it would count it twice.
             Of the last two and of the last four minutes, the trend nearer to zero

The intersection of confidence intervals (Goldenshluger and Nemirovski, 1997) chooses the span: long while nothing
changes, so that the rate is steady, and short at once when something does, up or down.

Persistence is the share of a surge that is still there when a replica that is asked for now takes work. It is learned
from past surges: the same service has the same kind again and again, but while one begins, a client's salvo of half a
minute looks like a new crowd.

    e       the surge as the policy sees it: rate over the span - rate over ten minutes, where that is positive
    a       what became of it: rate of the minute that begins a start-up time later - rate over the same ten minutes
    share   (P + sum e * a) / (P + sum e^2), within 0 .. 1: least squares through the origin, separately for short and
            long spans. P: a prior that surges stay, worth one replica's surge of some minutes. The sums are forgotten
            within half a day. Samples overlap, so each is weighted by the share of a start-up time that it covers
"""

import math
from collections import deque
from collections.abc import Sequence
from itertools import accumulate, pairwise

from autoscaling.signals.signals import Signals

BUCKET_S = 5.0
KEPT = 120
DOUBT = 1.5
_NOISE_WEIGHT = BUCKET_S / 3_600.0
_SPANS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 36, 54, 80, KEPT)
_TREND_BUCKETS = (24, 48)
_MIN = 6


class Demand:
    """`level_s`: the longest span (seconds), up to ten minutes."""

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
        """By how much the rate changes a second; 0 where that is not significant."""

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


SIGNIFICANT = 4.0


def slope(x: Sequence[float], variance: float) -> float:
    """By how much the values change from one to the next; 0 where that is not significant. `variance`: of their
    noise."""
    n = len(x)
    middle = (n - 1) / 2
    spread = n * (n * n - 1) / 12
    found = sum((index - middle) * value for index, value in enumerate(x)) / spread
    by_line = found * found * spread
    return 0.0 if by_line < SIGNIFICANT * SIGNIFICANT * variance or by_line < _by_step(x) else found


def _by_step(x: Sequence[float]) -> float:
    """The largest sum of squares that two levels explain."""
    n, total = len(x), math.fsum(x)
    sums = list(accumulate(x))
    return max((sums[k - 1] - total * k / n) ** 2 * n / (k * (n - k)) for k in range(1, n))


_SHORT_S = 60.0
_JUDGED_S = 60.0
_BELIEF = 4.0
_FORGOTTEN_S = 43_200.0


class Persistence:
    """See the module's docstring."""

    def __init__(self) -> None:
        self._epoch: int | None = None
        self._work: deque[tuple[float, float]] = deque()
        self._surges: deque[tuple[float, float, float, bool]] = deque()
        self._sums = {True: (0.0, 0.0), False: (0.0, 0.0)}

    def look(self, signals: Signals, demand: Demand, start_s: float, replica_per_s: float | None) -> None:
        """`replica_per_s`: a replica's capacity, the unit of all sums. While it is unknown, nothing is learned."""
        now, work = signals.at_s, signals.arrived_work
        if self._epoch != signals.epoch or (self._work and work < self._work[-1][1]):
            self._epoch = signals.epoch
            self._work.clear()
            self._surges.clear()
        if replica_per_s is None or (self._work and now - self._work[-1][0] < BUCKET_S):
            return
        self._work.append((now, work))
        kept = 0.5 ** (BUCKET_S / _FORGOTTEN_S)
        self._sums = {short: (kept * ea, kept * ee) for short, (ea, ee) in self._sums.items()}
        self._judge(now, start_s, replica_per_s)
        surge = (demand.rate - demand.usual) / replica_per_s
        if surge > 0 and demand.trend == 0.0:
            self._surges.append((now, demand.usual, surge, demand.span_s <= _SHORT_S))

    def share(self, span_s: float) -> float:
        """How much of a surge to count on that is seen over `span_s`."""
        ea, ee = self._sums[span_s <= _SHORT_S]
        return min(1.0, max(0.0, (_BELIEF + ea) / (_BELIEF + ee)))

    def expected(self, demand: Demand) -> tuple[float, float, float]:
        """The share of a surge that stays until a replica that is asked for now is ready; the rate that is left then,
        and its standard error."""
        if demand.rate <= demand.usual or demand.trend:
            return 1.0, demand.rate, demand.error
        share = self.share(demand.span_s)
        error = demand.usual_error + share * max(0.0, demand.error - demand.usual_error)
        return share, demand.usual + share * (demand.rate - demand.usual), error

    def _judge(self, now: float, start_s: float, replica_per_s: float) -> None:
        while self._surges and now >= self._surges[0][0] + start_s + _JUDGED_S:
            at_s, usual, surge, short = self._surges.popleft()
            self._forget_before(at_s + start_s)
            began_s, before = self._work[0]
            came = ((self._work[-1][1] - before) / max(BUCKET_S, now - began_s) - usual) / replica_per_s
            weight = BUCKET_S / (start_s + _JUDGED_S)
            ea, ee = self._sums[short]
            self._sums[short] = (ea + weight * surge * came, ee + weight * surge * surge)
        if not self._surges:
            self._forget_before(now)

    def _forget_before(self, at_s: float) -> None:
        """All but the last count before that."""
        while len(self._work) > 1 and self._work[1][0] <= at_s:
            self._work.popleft()


class PooledHeadroom:
    """What peers take off a cell's headroom: what a surge needs beyond it, they serve until more replicas are there.

    How much of their room a cell may count on, the peering says (`KnownPeers.spare`). Only the headroom shrinks, never
    what the expected demand needs. What peers have to spare changes with each of their requests and the number of
    replicas must not, so it is averaged over a start-up time.
    """

    def __init__(self, at_s: float) -> None:
        self._at_s = at_s
        self._spare = 0.0

    def look(self, signals: Signals, start_s: float) -> float:
        """What peers have to spare, in replicas, on average."""
        kept = 0.5 ** ((signals.at_s - self._at_s) / max(1.0, start_s))
        self._spare = kept * self._spare + (1.0 - kept) * signals.peers_spare
        self._at_s = signals.at_s
        return self._spare

    def left_of(self, headroom: float) -> float:
        """Of a headroom in replicas, what the cell keeps itself."""
        return max(0.0, headroom - self._spare)
