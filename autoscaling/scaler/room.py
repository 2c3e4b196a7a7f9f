"""How many replicas there is room for. What the platform says is believed; what it has not started for long is taken for impossible, for a while."""

import math

from autoscaling.scaler.bounds import Bounds
from autoscaling.signals.signals import ReplicaState, Signals


class Room:
    """Watches whether what was asked for comes."""

    def __init__(self) -> None:
        self._waiting_since_s = math.inf
        self._there = 0
        self._most: int | None = None
        self._until_s = 0.0

    def look(self, signals: Signals, bounds: Bounds) -> None:
        """Takes a moment into account. Replicas start within `unschedulable_s`; a later one is not coming."""
        there = sum(replica.state is not ReplicaState.DRAINING for replica in signals.replicas)
        if self._most is not None and (there > self._most or signals.at_s >= self._until_s):
            self._most = None
        if signals.applied <= there or there != self._there:
            self._waiting_since_s = math.inf
        if signals.applied > there:
            self._waiting_since_s = min(self._waiting_since_s, signals.at_s)
        self._there = there
        if signals.at_s - self._waiting_since_s >= bounds.unschedulable_s:
            self._most, self._until_s, self._waiting_since_s = there, signals.at_s + bounds.retry_s, math.inf

    def most(self, signals: Signals) -> int | None:
        """The most that there is room for, as far as anybody knows."""
        known = [most for most in (self._most, signals.schedulable) if most is not None]
        return min(known) if known else None
