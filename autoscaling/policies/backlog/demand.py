"""How much work arrives: its rate and its dispersion, from cumulative counts in buckets of five seconds.

    noise    D = mean((x[i] - x[i-1])^2) / 2 / mean(x), x: work by bucket. An index of dispersion that slow changes do
             not affect (von Neumann, 1941), averaged over about an hour
    r(s)     work of the last s seconds / s, with half-width h(s) = DOUBT * (sqrt(r(s) * D / s) + D / s)
    rate     the largest of r(ten minutes) and r(s) - h(s): the average, unless a shorter span is surely busier. Salvos
             share the replicas with what was there: a span is at least STAYS times as long as a request stays

What falls is not followed at once: the number of replicas waits for `down_after_s` anyway. Shorter averages, spans and
trends took more replica-hours at equal attainment (docs/decisions/0049-four-knobs-and-a-learned-capacity.md).
"""

import math
from collections import deque
from itertools import pairwise

from autoscaling.signals.signals import Signals

BUCKET_S = 5.0
KEPT = 120
"""Buckets, of ten minutes."""
SPANS = (2, 4, 6, 8, 12, 16, 24, 32, 48)
DOUBT = 3.0
STAYS = 3.0
_NOISE_WEIGHT = BUCKET_S / 3_600.0


class Demand:
    """`rate`: work a second, over the last `span_s`; `noise`: the index of dispersion D (work); `last_arrival_s`: when
    something last arrived."""

    def __init__(self) -> None:
        self._epoch: int | None = None
        self._last_work = 0.0
        self._open_since_s = 0.0
        self._open = 0.0
        self._buckets: deque[float] = deque(maxlen=KEPT)
        self._measured = 0
        self.last_arrival_s = -math.inf
        self.rate = 0.0
        self.span_s = BUCKET_S
        self.noise = 0.0

    def look(self, signals: Signals, stays_s: float) -> None:
        now, work = signals.at_s, signals.arrived_work
        if self._epoch is None:
            new, self._open_since_s = 0.0, now
        else:  # counts begin anew with their owner
            new = work if self._epoch != signals.epoch else max(0.0, work - self._last_work)
        self._epoch, self._last_work = signals.epoch, work
        if new > 0:
            self.last_arrival_s = now
        self._open += new
        passed = now - self._open_since_s
        if passed >= BUCKET_S:
            count = int(passed // BUCKET_S)
            even = self._open * BUCKET_S / passed  # whoever is asked seldom fills several at once
            self._buckets.extend([even] * min(count, KEPT))
            self._open = max(0.0, self._open - even * count)
            self._open_since_s += count * BUCKET_S
            self._close(stays_s)

    def _close(self, stays_s: float) -> None:
        buckets = list(self._buckets)
        mean = sum(buckets) / len(buckets)
        self.rate, self.span_s = mean / BUCKET_S, len(buckets) * BUCKET_S
        if len(buckets) < 6 or mean <= 0:
            return
        variance = sum((b - a) ** 2 for a, b in pairwise(buckets)) / (2 * (len(buckets) - 1))
        self._measured += 1
        self.noise += max(_NOISE_WEIGHT, 1.0 / self._measured) * (variance / mean - self.noise)
        for span in SPANS:
            seconds = span * BUCKET_S
            if seconds < STAYS * stays_s:
                continue
            rate = sum(buckets[-span:]) / seconds
            sure = rate - DOUBT * (math.sqrt(rate * self.noise / seconds) + self.noise / seconds)
            if sure > self.rate:
                self.rate, self.span_s = sure, seconds


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
