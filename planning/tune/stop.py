"""Ends runs that are not worth their time: what they have broken or cost already can not be made good."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from planning.simulator.cell import Cell
from planning.tune.played import Stopped

_EVERY_S = 600.0
"""Of simulated time."""


class OutOfTime(Exception):
    """The time for trying is over: what was running is thrown away."""


class Halted(Exception):
    """A run was ended for `reason` at second `at_s` of it."""

    def __init__(self, reason: Stopped, at_s: float) -> None:
        super().__init__(reason)
        self.reason = reason
        self.at_s = at_s


@dataclass(frozen=True, slots=True)
class Stop:
    """When to end a run: at `deadline_s` of the clock; at more than `missed` broken promises of a class (by its number), at more than `hours` of
    replicas."""

    deadline_s: float
    missed: tuple[float, ...]
    hours: float = math.inf


class Watch:
    """Give it to a `Cell` as `sample`. `codes`: the class of each request by number. Raises OutOfTime or Halted out of the run."""

    def __init__(self, stop: Stop, clock: Callable[[], float], slo_s: NDArray[np.float64], codes: NDArray[np.int64]) -> None:
        self._stop = stop
        self._clock = clock
        self._slo_s = slo_s
        self._codes = codes

    def __call__(self, cell: Cell, until_s: float) -> float:
        """Looks, and says when to look again."""
        if self._clock() > self._stop.deadline_s:
            raise OutOfTime
        if math.isinf(until_s):
            return until_s
        if hours_so_far(cell, until_s) > self._stop.hours:
            raise Halted(Stopped.DEAR, until_s)
        out = cell.outcome
        came = int(np.searchsorted(out.arrived_s, until_s - self._slo_s.max(initial=0.0)))
        late = ~(out.ttft_s[:came] <= self._slo_s[:came])
        missed = np.bincount(self._codes[:came], weights=late, minlength=len(self._stop.missed))
        if any(count > most for count, most in zip(missed.tolist(), self._stop.missed, strict=True)):
            raise Halted(Stopped.HOPELESS, until_s)
        return until_s + _EVERY_S


def hours_so_far(cell: Cell, now: float) -> float:
    """Replica-hours that are paid for until now."""
    return sum(min(replica.ended_s, now) - replica.started_s for replica in cell.replicas) / 3600
