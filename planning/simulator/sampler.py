"""Samples a simulated cell at even times while it runs: what cannot be derived afterwards from the outcome of the
requests.

Nobody knows beforehand how long a run takes, so the period doubles, and every other sample is dropped, whenever there
are too many: there are always between `FEWEST` and twice as many, once the run is long enough. A sample is the state
between two events, so it holds until the next one.
"""

from dataclasses import dataclass

import numpy as np

from deployments.engine_model.sequence import ItlHistogram
from deployments.scheduling import WaitReason
from planning.simulator.bins import Column
from planning.simulator.cell import CellSimulator

FEWEST = 1_024
_FIRST_PERIOD_S = 0.05


@dataclass(frozen=True, slots=True)
class Samples:
    """Columns of equal length. KV: the share of the KV tokens in use, over the engines, as of each engine's last step
    boundary. `waits`: what the head of each lane that holds requests waits for."""

    at_s: Column
    running: Column
    """Sequences that run in all engines."""
    inside: Column
    """Sequences that wait inside the engines, bound but not begun."""
    kv_mean: Column
    kv_max: Column
    preemptions: Column
    """So far."""
    waits: tuple[tuple[tuple[str, WaitReason], ...], ...]
    gaps: tuple[dict[int, int], ...] = ()
    """So far, of all engines: how many times between tokens there were in each bin of `ItlHistogram`."""


class Sampler:
    """Give its `take` to a cell, and ask for its `samples` when the run is over."""

    def __init__(self) -> None:
        self._period_s = _FIRST_PERIOD_S
        self._next_s = 0.0
        self._rows: list[tuple[float, ...]] = []
        self._waits: list[tuple[tuple[str, WaitReason], ...]] = []
        self._gaps: list[dict[int, int]] = []

    def take(self, cell: CellSimulator, until_s: float) -> float:
        """Takes the samples that are due before `until_s`, until which nothing changes. Returns when the next is
        due."""
        state, waits, gaps = _state(cell), cell.scheduler.head_waits(), _gaps(cell)
        ends = until_s == float("inf")
        while self._next_s < until_s:
            self._rows.append((self._next_s, *state))
            self._waits.append(waits)
            self._gaps.append(gaps)
            self._next_s += self._period_s
            if len(self._rows) >= 2 * FEWEST:
                self._thin()
            if ends:
                return until_s
        return self._next_s

    def samples(self) -> Samples:
        """What was seen so far."""
        at_s, running, inside, kv_mean, kv_max, preemptions = np.array(self._rows, dtype=np.float64).reshape(-1, 6).T
        return Samples(at_s, running, inside, kv_mean, kv_max, preemptions, tuple(self._waits), tuple(self._gaps))

    def _thin(self) -> None:
        self._rows = self._rows[::2]
        self._waits = self._waits[::2]
        self._gaps = self._gaps[::2]
        self._period_s *= 2
        self._next_s = self._rows[-1][0] + self._period_s


def _gaps(cell: CellSimulator) -> dict[int, int]:
    total = ItlHistogram()
    for replica in cell.fleet.replicas:
        total.merge(replica.engine.itl)
    return total.counts


def _state(cell: CellSimulator) -> tuple[float, ...]:
    running = inside = preemptions = 0
    usages = []
    for replica in cell.fleet.replicas:
        engine = replica.engine
        preemptions += engine.preemptions
        if replica.serves:
            running += engine.running
            inside += engine.waiting
            usages.append(engine.kv_usage)
    return running, inside, sum(usages) / max(1, len(usages)), max(usages, default=0.0), preemptions
