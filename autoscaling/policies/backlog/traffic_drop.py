"""Whether next to nothing comes of what usually does. Whatever sends the requests may be out; then all of it comes back
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

from collections import deque

from autoscaling.signals.signals import Signals

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
