"""How often the number may change.

How often the number may change: the one rule, for live clusters, shadows and the simulator, since all of them ask
the policy.

    reversal   within `within_s` of a step up none down, unless the load has fallen by a whole replica's worth from its
               peak since: a reversal that the load does not ask for is a flap. A step down that is taken back within
               `within_s`, though the load is no more than the replicas carried before it, was taken too early: the next
               ones wait twice as long, at most MAX times, and half of that is forgotten every hour
    rest       a step of less than SMALL_UP or SMALL_DOWN of the replicas waits until the number has rested for
               `within_s`, unless the load fills PRESSING of them; for a small step down, fewer must have sufficed for
               as long as that. Larger ones are worth a change at any time
    settling   several steps down that follow each other within SETTLE_S are taken as one, at the last one's time

Whoever waits and promises that are missed wait for nothing of this. A step that is under way, slowed down by a rate
limit, is none of its own.


Whether next to nothing comes of what usually does. Whatever sends the requests may be out; then all of it comes back
at once.

    usual    requests a second, averaged with a half-life of HALF_S: a burst of minutes is not usual, and what has gone
             for hours is not either
    traffic drop     fewer than BEGINS of what is usual came in the last span; it is over when ENDS of it came
    span     a minute, or as long as LEAST requests usually take, up to five; where they take longer nobody can tell

Nobody knows whether the load comes back in minutes. So the number follows the silence, but no faster than by half at a
time, and rests between two steps for as long as a reversal must wait (`cooldown.py`). The load's peak does not matter
for that, as it does there: it has fallen, whatever it was. What is needed falls bit by bit while the silence is
averaged in, so a step waits until half fits, for at most twice as long as that.
"""

import math
from collections import deque

from autoscaling.signals.signals import Signals

MAX = 4.0
SMALL_UP, SMALL_DOWN = 0.15, 0.25
PRESSING = 0.95
SETTLE_S = 30.0
_FORGOTTEN_S = 3_600.0


class Cooldown:
    """`load` is in replicas' worth of work a second, as far as it is known. `within_s` may be changed at any time; 0:
    nothing rests."""

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
        """Takes a moment into account. Only steps that the policy itself wanted count: another hand's are no flaps of
        its."""
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
        """What the policy wants at this moment."""
        self._desired = replicas
        if not self._fits:
            self._fits_since_s = None
        self._fits = False

    def patience(self, now: float) -> float:
        """How many times as long as usual fewer must have sufficed: 1 to MOST."""
        return 1.0 + self._regret * 0.5 ** ((now - self._regret_s) / _FORGOTTEN_S) if self._regret else 1.0

    def minimum(self, now: float, max_load: float) -> int:
        """Fewer would be a flap at this moment; what another hand put on top may go. `max_load`: the largest of the
        time in which fewer sufficed."""
        return self._reached if now - self._up_s < self.within_s and max_load > self._peak - 1.0 else 0

    def small(self, replicas: int) -> bool:
        """Whether a step to so many is a small one: it frees or adds little, so it can wait. Not where it is under way
        already."""
        applied, desired = self._applied, self._desired
        if applied is None or not self.within_s:
            return False
        if replicas > applied:
            return replicas - applied < SMALL_UP * applied and not (desired is not None and desired >= replicas)
        return applied - replicas < SMALL_DOWN * applied and not (desired is not None and desired <= replicas)

    def rests(self, now: float) -> bool:
        """Whether the number has changed so lately that a small step waits."""
        return now - max(self._up_s, self._down_s) < self.within_s

    @property
    def presses(self) -> bool:
        """Whether there is nearly as much to do as the replicas can: a step up waits for nothing then."""
        return self._applied is not None and self._load >= PRESSING * self._applied

    def settled(self, now: float, fewer: int, soon: int) -> bool:
        """Whether a step down to `fewer`, which is asked for at every moment that would allow it, need not wait for the
        one to `soon`: what will fit in SETTLE_S, as it looks."""
        self._fits = True
        if self._fits_since_s is None:
            self._fits_since_s = now
        return not self.within_s or soon >= fewer or now - self._fits_since_s >= SETTLE_S

    def _stepped_up(self, now: float, load: float, applied: int) -> None:
        if now - self._down_s < self.within_s and load <= self._before:
            self._regret = min(MAX, 2.0 * self.patience(now)) - 1.0
            self._regret_s = now
        self._up_s, self._peak, self._reached = now, load, applied


class Stabiliser:
    """When fewer are enough: the largest number needed in the last `span` seconds, kept as a descending queue."""

    def __init__(self) -> None:
        self._needed: deque[tuple[float, float]] = deque()
        self._since_s: float | None = None
        self._longest_s = 0.0

    def look(self, now: float, needed: float) -> None:
        """So many (a fraction too) were needed at this moment."""
        if self._since_s is None:
            self._since_s = now
        while self._needed and self._needed[-1][1] <= needed:
            self._needed.pop()
        self._needed.append((now, needed))

    def maximum(self, now: float, span_s: float) -> float | None:
        """The largest of the last `span_s` seconds; None while less than that was seen. Spans may differ from call to
        call."""
        if self._since_s is None or now - self._since_s < span_s:
            return None
        self._longest_s = max(self._longest_s, span_s)
        while len(self._needed) > 1 and self._needed[0][0] < now - self._longest_s:
            self._needed.popleft()
        return next((needed for at_s, needed in self._needed if at_s >= now - span_s), self._needed[-1][1])


HALF_S = 1_800.0
BEGINS, ENDS = 0.1, 0.25
MIN = 10
_SHORT_S, _LONG_S = 60.0, 300.0
_STEP_S = 5.0


class TrafficDrop:
    """`lasts`: whether there is one."""

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
        """Takes a moment into account."""
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
        """To how many a step down may go at this moment, where `fewer` would carry the load. What a rate limit makes of
        it may take its time: until the next step is due, the number may go as low as this one."""
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
        if usual * _LONG_S < MIN:
            self.lasts = False
            return
        span_s = max(_SHORT_S, MIN / usual)
        began_s, before = next((one for one in reversed(self._seen) if one[0] <= now - span_s), self._seen[0])
        if now - began_s < span_s:
            return
        share = (arrived - before) / (usual * (now - began_s))
        if not self.lasts:
            self._since_s = now
        self.lasts = share < (ENDS if self.lasts else BEGINS)
