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


def flaps(changes: Sequence[Change], load: Callable[[float], float]) -> int:
    """How many changes reverse the last one in the other direction. `load` at a time, in replicas' worth."""
    count = 0
    last: dict[bool, Change] = {}
    for change in changes:
        up = change.after > change.before
        opposite = last.get(not up)
        if opposite is not None and change.at_s - opposite.at_s <= WITHIN_S and abs(load(change.at_s) - load(opposite.at_s)) < 1.0:
            count += 1
            last.clear()
        last[up] = change
    return count
