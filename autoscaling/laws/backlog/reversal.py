"""Keeps the number from going one way and back: what a step down must wait for after a step up, and what is learned from one taken too early.

A reversal that the load does not ask for is a flap: within `within_s` of a step up none down, unless the load has fallen by a whole replica's worth
from its peak since. And a step down that is taken back within `within_s`, though the load is no more than the replicas carried before it, was taken
too early: the next ones wait twice as long, at most MOST times, and half of that is forgotten every hour.
"""

import math

MOST = 4.0
_FORGOTTEN_S = 3_600.0


class Reversal:
    """`load` is in replicas' worth of work a second, as far as it is known. `within_s` may be changed at any time; 0: nothing is a flap."""

    def __init__(self, within_s: float = 0.0) -> None:
        self.within_s = within_s
        self._applied: int | None = None
        self._wanted: int | None = None
        self._up_s = -math.inf
        self._peak = 0.0
        self._reached = 0
        self._down_s = -math.inf
        self._before = 0.0
        self._regret = 0.0
        self._regret_s = -math.inf

    def look(self, now: float, applied: int, load: float) -> None:
        """Takes a moment into account. Only steps that the law itself wanted count: another hand's are no flaps of its."""
        old, wanted = self._applied, self._wanted
        if old is not None and wanted is not None:
            if applied > old and wanted > old:
                self._stepped_up(now, load, applied)
            elif applied < old and wanted < old:
                self._down_s, self._before = now, old
        self._applied = applied
        self._peak = max(self._peak, load)

    def wants(self, replicas: int) -> None:
        """What the law wants at this moment."""
        self._wanted = replicas

    def patience(self, now: float) -> float:
        """How many times as long as usual fewer must have sufficed: 1 to MOST."""
        return 1.0 + self._regret * 0.5 ** ((now - self._regret_s) / _FORGOTTEN_S) if self._regret else 1.0

    def least(self, now: float, most_load: float) -> int:
        """Fewer would be a flap at this moment; what another hand put on top may go. `most_load`: the largest of the time in which fewer sufficed."""
        return self._reached if now - self._up_s < self.within_s and most_load > self._peak - 1.0 else 0

    def _stepped_up(self, now: float, load: float, applied: int) -> None:
        if now - self._down_s < self.within_s and load <= self._before:
            self._regret = min(MOST, 2.0 * self.patience(now)) - 1.0
            self._regret_s = now
        self._up_s, self._peak, self._reached = now, load, applied
