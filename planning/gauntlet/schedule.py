"""A schedule of replicas, known beforehand; and the law that keeps to it, so that what knows the future runs through the same cell as what does not.

A schedule is made of what is needed in each bin of `BIN_S`: level by level, a gap that is shorter than a start is filled, since ending a replica and
starting another costs more than keeping it; and each is asked for as long before it is needed as a start takes. Pure.
"""

import math
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from autoscaling.laws.law import Motive, Wanted
from autoscaling.signals.signals import Signals

BIN_S = 10.0

Needed = NDArray[np.int64]
"""Replicas in each bin, from second 0."""


@dataclass(frozen=True, slots=True)
class Run:
    """A level of the fleet is there from one bin until before another."""

    level: int
    begin: int
    end: int


@dataclass(frozen=True, slots=True)
class Schedule:
    """From `at_s[i]` on the number is `replicas[i]`; the first is at second 0."""

    at_s: tuple[float, ...]
    replicas: tuple[int, ...]

    def __call__(self, at_s: float) -> int:
        """The number at a time."""
        return self.replicas[max(0, bisect_right(self.at_s, at_s) - 1)]


class ScheduleLaw:
    """Keeps to a schedule, whatever happens."""

    name: ClassVar[str] = "schedule"
    period_s = 1.0
    latency_span_s = 0.0

    def __init__(self, schedule: Schedule) -> None:
        self._schedule = schedule

    def decide(self, signals: Signals) -> Wanted:
        """See `Law`."""
        return Wanted(self._schedule(signals.at_s), Motive.SCHEDULE)


def runs_of(needed: Needed) -> Iterator[Run]:
    """The runs that make it up, level by level."""
    for level in range(1, int(needed.max(initial=0)) + 1):
        there = np.concatenate(([False], needed >= level, [False]))
        edges = np.flatnonzero(there[1:] != there[:-1])
        for begin, end in zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True):
            yield Run(level, begin, end)


def filled(needed: Needed, start_up_s: float, replicas: int) -> Needed:
    """The same, without gaps that are shorter than a start. `replicas` are there at the beginning."""
    total = np.zeros_like(needed)
    runs: dict[int, list[Run]] = {}
    for run in runs_of(needed):
        runs.setdefault(run.level, []).append(run)
    for level, own in runs.items():
        end = 0 if level <= replicas else -math.inf
        for run in own:
            begin = int(end) if (run.begin - end) * BIN_S <= start_up_s else run.begin
            total[begin : run.end] += 1
            end = run.end
    return total


def scheduled(needed: Needed, start_up_s: float, replicas: int) -> Schedule:
    """When to ask for what, so that as many are ready as are needed. What is needed before a start can be over comes as soon as it can."""
    changes = [(0.0, 0)]
    for run in runs_of(filled(needed, start_up_s, replicas)):
        there = run.level <= replicas and run.begin == 0
        changes += [(0.0 if there else max(0.0, run.begin * BIN_S - start_up_s), 1), (run.end * BIN_S, -1)]
    number: dict[float, int] = {}
    total = 0
    for at_s, step in sorted(changes):
        total += step
        number[at_s] = total
    return Schedule(tuple(number), tuple(number.values()))
