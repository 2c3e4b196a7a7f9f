"""How often the number of replicas may change. Live clusters, shadows and the simulator share these rules, since all of
them ask the policy.

`Cooldown`:

    reversal   For `within_s` after a step up there is no step down, unless the load has fallen by one replica's worth
               from its peak since. If a step down is reversed within `within_s`, although the load is no more than the
               replicas carried before it, it came too early: the next ones wait twice as long, up to MAX_PATIENCE
               times; half of that is forgotten every hour.
    rest       A step of less than SMALL_UP or SMALL_DOWN of the replicas waits until the number has not changed for
               `within_s`. A small step up does not wait if the load fills PRESSING of the replicas. For a small step
               down, fewer must have sufficed for as long. Larger steps never rest.
    settling   Steps down that follow each other within SETTLE_S are merged into one, at the time of the last. After a
               step down the next one waits for at least as long.

A backlog and missed SLOs wait for none of this. A step that a rate limit spreads over time counts as one.

`TrafficDrop`: almost nothing arrives of what usually does. The source may have failed, and may return suddenly.

    usual      requests a second, averaged with a half-life of HALF_S. A burst of minutes is not usual; neither is
               traffic that ended hours ago
    begins     when fewer than BEGINS of the usual requests arrive within a span; ends when ENDS of them do
    span       a minute, or as long as MIN_REQUESTS usually take, up to five minutes; with less traffic no drop is
               detected

Meanwhile a step down removes at most half of the replicas, and the next one waits as long as a reversal would. The peak
load does not matter here: it has passed. The need falls bit by bit while the average follows the drop, so a step waits
until half suffice, for at most twice that time.
"""

import math
from collections import deque

from autoscaling.signals.signals import Signals

MAX_PATIENCE = 4.0
SMALL_UP, SMALL_DOWN = 0.15, 0.25
PRESSING = 0.95
SETTLE_S = 30.0
_FORGOTTEN_S = 3_600.0


class Cooldown:
    """`load`: work a second, in replicas, as far as it is known. `within_s` may be changed at any time; 0: no step
    rests."""

    def __init__(self, within_s: float = 0.0) -> None:
        self.within_s = within_s
        self._applied: int | None = None
        self._desired: int | None = None
        self._load = 0.0
        self._up_s = -math.inf
        self._peak = 0.0
        self._reached = 0
        self._down_s = -math.inf
        self._before = 0.0
        self._regret = 0.0
        self._regret_s = -math.inf
        self._fits_since_s: float | None = None
        self._fits = False

    def look(self, now: float, applied: int, load: float) -> None:
        """Only steps that the policy itself wanted count."""
        old, desired = self._applied, self._desired
        if old is not None and desired is not None:
            if applied > old and desired > old:
                self._stepped_up(now, load, applied)
            elif applied < old and desired < old:
                self._down_s, self._before = now, old
        if applied != old:
            self._fits_since_s = None
        self._applied, self._load = applied, load
        self._peak = max(self._peak, load)

    def wants(self, replicas: int) -> None:
        """The policy's answer at this moment."""
        self._desired = replicas
        if not self._fits:
            self._fits_since_s = None
        self._fits = False

    def patience(self, now: float) -> float:
        """How many times as long as usual fewer must have sufficed: 1 to MAX_PATIENCE."""
        return 1.0 + self._regret * 0.5 ** ((now - self._regret_s) / _FORGOTTEN_S) if self._regret else 1.0

    def minimum(self, now: float, max_load: float) -> int:
        """The number below which a step down would be a reversal; replicas that somebody else added may go. `max_load`:
        the largest load of the time in which fewer sufficed."""
        return self._reached if now - self._up_s < self.within_s and max_load > self._peak - 1.0 else 0

    def small(self, replicas: int) -> bool:
        """Whether a step to `replicas` is a small one. A step that is already under way is not."""
        applied = self._applied
        if applied is None or not self.within_s:
            return False
        share = SMALL_UP if replicas > applied else SMALL_DOWN
        return abs(replicas - applied) < share * applied and not self._under_way(replicas)

    def rests(self, now: float) -> bool:
        """Whether the number changed less than `within_s` ago."""
        return now - max(self._up_s, self._down_s) < self.within_s

    @property
    def presses(self) -> bool:
        """Whether the load nearly fills the replicas, so that no step up waits."""
        return self._applied is not None and self._load >= PRESSING * self._applied

    def delays_step_up(self, now: float, replicas: int) -> bool:
        """Whether a step up to `replicas` waits."""
        return self.small(replicas) and self.rests(now) and not self.presses

    def settled(self, now: float, fewer: int, soon: int) -> bool:
        """Whether a step down to `fewer` is taken now, rather than in SETTLE_S, when `soon` may suffice. To be asked at
        every moment that allows the step."""
        self._fits = True
        if self._fits_since_s is None:
            self._fits_since_s = now
        return not self.within_s or soon >= fewer or now - self._fits_since_s >= SETTLE_S

    def follows(self, now: float, fewer: int) -> bool:
        """Whether a step down to `fewer` would follow the last one within SETTLE_S."""
        return now - self._down_s < min(SETTLE_S, self.within_s) and not self._under_way(fewer)

    def _under_way(self, replicas: int) -> bool:
        """Whether the last answer went as far as `replicas`, or further."""
        if self._applied is None or self._desired is None:
            return False
        return self._desired >= replicas if replicas > self._applied else self._desired <= replicas

    def _stepped_up(self, now: float, load: float, applied: int) -> None:
        if now - self._down_s < self.within_s and load <= self._before:
            self._regret = min(MAX_PATIENCE, 2.0 * self.patience(now)) - 1.0
            self._regret_s = now
        self._up_s, self._peak, self._reached = now, load, applied


class Stabiliser:
    """The largest of a quantity over the last seconds, kept as a descending queue."""

    def __init__(self) -> None:
        self._needed: deque[tuple[float, float]] = deque()
        self._since_s: float | None = None
        self._longest_s = 0.0

    def look(self, now: float, needed: float) -> None:
        if self._since_s is None:
            self._since_s = now
        while self._needed and self._needed[-1][1] <= needed:
            self._needed.pop()
        self._needed.append((now, needed))

    def maximum(self, now: float, span_s: float) -> float | None:
        """The largest of the last `span_s` seconds; None while less than that was seen. Spans may differ between
        calls."""
        if self._since_s is None or now - self._since_s < span_s:
            return None
        self._longest_s = max(self._longest_s, span_s)
        while len(self._needed) > 1 and self._needed[0][0] < now - self._longest_s:
            self._needed.popleft()
        return next((needed for at_s, needed in self._needed if at_s >= now - span_s), self._needed[-1][1])


HALF_S = 1_800.0
BEGINS, ENDS = 0.1, 0.25
MIN_REQUESTS = 10
_SHORT_S, _LONG_S = 60.0, 300.0
_STEP_S = 5.0


class TrafficDrop:
    """`lasts`: whether traffic has dropped. See the module's docstring."""

    def __init__(self) -> None:
        self.lasts = False
        self._since_s = 0.0
        self._epoch: int | None = None
        self._seen: deque[tuple[float, int]] = deque()
        self._requests = 0.0
        self._seconds = 0.0
        self._applied: int | None = None
        self._changed_s = 0.0
        self._level: int | None = None
        self._level_s = 0.0

    def look(self, signals: Signals) -> None:
        now, arrived = signals.at_s, signals.arrived
        if signals.applied != self._applied:
            if self._applied is None or signals.applied > self._applied:
                self._level = None
            self._applied, self._changed_s = signals.applied, now
        if self._epoch != signals.epoch or (self._seen and arrived < self._seen[-1][1]):
            self._epoch = signals.epoch
            self._seen.clear()  # counts began anew; what was usual still is
        if self._seen and now - self._seen[-1][0] < _STEP_S:
            return
        if self._seen:
            passed = now - self._seen[-1][0]
            kept = 0.5 ** (passed / HALF_S)
            self._requests = kept * self._requests + arrived - self._seen[-1][1]
            self._seconds = kept * self._seconds + passed
        self._seen.append((now, arrived))
        while len(self._seen) > 1 and self._seen[1][0] <= now - _LONG_S:
            self._seen.popleft()
        self._judge(now, arrived)

    def allowed(self, now: float, within_s: float, fewer: int) -> int:
        """To how many a step down may go now, where `fewer` carry the load. A rate limit may spread it: until the next
        step is due, the number may go as low as this."""
        if not self.lasts or self._applied is None:
            self._level = None
            return fewer
        if self._level is None or now - self._level_s >= within_s:
            half = (self._applied + 1) // 2
            waits = fewer > half and now - self._since_s < 2 * within_s
            rests = self._level is None and now - self._changed_s < within_s
            if waits or rests:
                return self._applied
            self._level, self._level_s = max(half, fewer), now
        return max(fewer, min(self._applied, self._level))

    def _judge(self, now: float, arrived: int) -> None:
        usual = self._requests / self._seconds if self._seconds else 0.0
        if usual * _LONG_S < MIN_REQUESTS:
            self.lasts = False
            return
        span_s = max(_SHORT_S, MIN_REQUESTS / usual)
        began_s, before = next((one for one in reversed(self._seen) if one[0] <= now - span_s), self._seen[0])
        if now - began_s < span_s:
            return
        share = (arrived - before) / (usual * (now - began_s))
        if not self.lasts:
            self._since_s = now
        self.lasts = share < (ENDS if self.lasts else BEGINS)
