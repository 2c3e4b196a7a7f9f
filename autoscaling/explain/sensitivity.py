"""How far one input must be moved until the number of replicas would have been another: tried outwards, then narrowed by bisection. Pure.

A law need not answer in order: between two tried factors of the same answer there may be another. What is told is the nearest that was found.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

from autoscaling.explain.levers import Lever
from autoscaling.scaler.decision import Decision

_UP = (1.1, 1.25, 1.5, 2.0, 3.0, 5.0, 10.0)
_DOWN = (0.9, 0.8, 2 / 3, 0.5, 1 / 3, 0.2, 0.1, 0.0)
_MORE = (1.0, 2.0, 3.0)
_NARROWINGS = 8


@dataclass(frozen=True, slots=True)
class Turn:
    """Moved to `at` (a factor, or so many more), `replicas` would have been asked for, for `reason`."""

    lever: str
    at: float
    counts: bool
    replicas: int
    reason: str


def turns(lever: Lever, requested: int) -> tuple[Turn, ...]:
    """The nearest moves in either direction that would have changed the number; none where none was found."""
    if lever.counts:
        found = [_first(lever, requested, steps) for steps in (_MORE, tuple(-more for more in _MORE))]
    else:
        found = [_narrowed(lever, requested, steps) for steps in (_UP, _DOWN)]
    return tuple(turn for turn in found if turn is not None)


def _first(lever: Lever, requested: int, steps: tuple[float, ...]) -> Turn | None:
    for at in steps:
        decision = lever.decide(at)
        if decision is not None and decision.requested != requested:
            return _turn(lever, at, decision)
    return None


def _narrowed(lever: Lever, requested: int, steps: tuple[float, ...]) -> Turn | None:
    turn = _first(lever, requested, steps)
    if turn is None:
        return None
    index = steps.index(turn.at)
    same, other = (steps[index - 1] if index else 1.0), turn.at
    return _bisect(lambda at: lever.decide(at), lever, requested, same, other) or turn


def _bisect(decide: Callable[[float], Decision | None], lever: Lever, requested: int, same: float, other: float) -> Turn | None:
    """Between a factor that changes nothing and one that does, in ratios where there are any."""
    found: Turn | None = None
    for _ in range(_NARROWINGS):
        middle = math.sqrt(same * other) if same > 0 and other > 0 else (same + other) / 2
        decision = decide(middle)
        if decision is None or decision.requested == requested:
            same = middle
        else:
            other, found = middle, _turn(lever, middle, decision)
    return found


def _turn(lever: Lever, at: float, decision: Decision) -> Turn:
    return Turn(lever.name, at, lever.counts, decision.requested, decision.reason)
