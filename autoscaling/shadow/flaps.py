"""Flaps: the number of replicas goes one way and, within ten minutes, back, though the load did not change by as much as one replica does."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

WITHIN_S = 600.0


@dataclass(frozen=True, slots=True)
class Change:
    """At `at_s` the number of replicas went from `before` to `after`."""

    at_s: float
    before: int
    after: int


class FlapCounter:
    """Counts as changes happen: how many reverse the last one in the other direction."""

    def __init__(self) -> None:
        self.count = 0
        self._last: dict[bool, tuple[Change, float]] = {}

    def take(self, change: Change, load: float) -> None:
        """A change, and the load at that moment in replicas' worth."""
        up = change.after > change.before
        opposite = self._last.get(not up)
        if opposite is not None and change.at_s - opposite[0].at_s <= WITHIN_S and abs(load - opposite[1]) < 1.0:
            self.count += 1
            self._last.clear()
        self._last[up] = (change, load)


def flaps(changes: Sequence[Change], load: Callable[[float], float]) -> int:
    """How many of a whole run's changes are flaps. `load` at a time, in replicas' worth."""
    counter = FlapCounter()
    for change in changes:
        counter.take(change, load(change.at_s))
    return counter.count
