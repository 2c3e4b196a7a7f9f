"""What became of the requests of several simulated cells, and what the cells cost."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from planning.simulator.outcome import Life


@dataclass(frozen=True, slots=True)
class CellSpend:
    """The replicas of one cell: their lives, in the order of their start, and the seconds and USD that they are paid
    for."""

    lives: tuple[Life, ...]
    replica_s: float
    usd: float

    @classmethod
    def of(cls, lives: Sequence[Life], usd_per_hour: float | None) -> "CellSpend":
        """Of the lives of a cell's replicas. Without a price they cost nothing."""
        ordered = tuple(sorted(lives, key=lambda life: life.started_s))
        seconds = sum(life.ended_s - life.started_s for life in ordered)
        return cls(ordered, seconds, seconds / 3_600 * (usd_per_hour or 0.0))


@dataclass(frozen=True, slots=True)
class CellsOutcome:
    """Columns over all requests, in seconds; NaN where it did not happen. `home`, `asked` (the cell that the client
    asked last) and `served` (-1: none) are indices of `cells`. `hops`: when, from which cell and to which one requests
    were taken, in that order.

    `reset`: the client's connection was reset, or its cell could not be reached; `broken`: its stream ended with an
    error, because the replica or the peer that answered was gone; `refused`: no cell that may serve it could be had.
    `spends`: by cell.
    """

    cells: tuple[str, ...]
    home: NDArray[np.int64]
    asked: NDArray[np.int64]
    served: NDArray[np.int64]
    ttft_s: NDArray[np.float64]
    finished_s: NDArray[np.float64]
    hops: tuple[tuple[float, int, int], ...]
    reasons: Mapping[str, int]
    refusals: Mapping[str, int]
    reset: NDArray[np.bool_]
    broken: NDArray[np.bool_]
    refused: NDArray[np.bool_]
    spends: tuple[CellSpend, ...]

    def own(self, cell: str) -> NDArray[np.bool_]:
        """The requests of a cell's own clients."""
        return np.asarray(self.home == self.cells.index(cell))

    def ttft_of(self, cell: str) -> NDArray[np.float64]:
        """The TTFT of a cell's own clients that got an answer."""
        return np.asarray(self.ttft_s[self.own(cell) & ~np.isnan(self.ttft_s)], dtype=np.float64)

    def in_time(self, slo_s: NDArray[np.float64]) -> NDArray[np.bool_]:
        """Whose first token came within the SLO, and whose answer was whole."""
        return np.asarray((np.nan_to_num(self.ttft_s, nan=np.inf) <= slo_s) & ~self.reset & ~self.broken)

    def attainment(self, cell: str, slo_s: NDArray[np.float64]) -> float:
        """The share of a cell's own clients that were served in time."""
        own = self.own(cell)
        return float(self.in_time(slo_s)[own].mean()) if own.any() else 1.0

    @property
    def usd(self) -> float:
        """What all cells cost."""
        return sum(spend.usd for spend in self.spends)

    def returned(self, within_s: float = 10.0) -> int:
        """Hand-overs that follow one in the other direction between the same cells within so long."""
        last_s: dict[tuple[int, int], float] = {}
        found = 0
        for at_s, source, target in self.hops:
            found += at_s - last_s.get((target, source), -math.inf) < within_s
            last_s[source, target] = at_s
        return found


def marked(indices: set[int], count: int) -> NDArray[np.bool_]:
    """A column that is true for these."""
    column = np.zeros(count, dtype=np.bool_)
    column[sorted(indices)] = True
    return column
