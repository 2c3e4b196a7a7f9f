"""What became of the requests of several simulated cells, and what the cells cost."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from planning.simulator.outcome import Life


@dataclass(frozen=True, slots=True)
class CellsOutcome:
    """Columns over all requests, in seconds; NaN where it did not happen. `home`, `asked` (the cell that the client
    asked last) and `served` (-1: none) are indices of `cells`. `hops`: when, from which cell and to which one requests
    were taken, in that order.

    `reset`: the client's connection was reset, or its cell could not be reached; `broken`: its stream ended with an
    error, because the replica or the peer that answered was gone; `refused`: no cell that may serve it could be had.
    `lives`: of each cell's replicas, in the order of their start; `usd`: what all of them cost.
    """

    cells: tuple[str, ...]
    home: NDArray[np.int64]
    asked: NDArray[np.int64]
    served: NDArray[np.int64]
    ttft_s: NDArray[np.float64]
    finished_s: NDArray[np.float64]
    hops: tuple[tuple[float, int, int], ...]
    refusals: Mapping[str, int]
    reset: NDArray[np.bool_]
    broken: NDArray[np.bool_]
    refused: NDArray[np.bool_]
    lives: Mapping[str, Sequence[Life]]
    usd: float

    def own(self, cell: str) -> NDArray[np.bool_]:
        """The requests of a cell's own clients."""
        return np.asarray(self.home == self.cells.index(cell))

    def in_time(self, slo_s: NDArray[np.float64]) -> NDArray[np.bool_]:
        """Whose first token came within the SLO, and whose answer was whole."""
        return np.asarray((np.nan_to_num(self.ttft_s, nan=np.inf) <= slo_s) & ~self.reset & ~self.broken)


def replica_hours(lives: Mapping[str, Sequence[Life]]) -> dict[str, float]:
    """By cell, what is paid for."""
    return {name: sum(one.ended_s - one.started_s for one in own) / 3_600 for name, own in lives.items()}


def marked(indices: set[int], count: int) -> NDArray[np.bool_]:
    """A column that is true for these."""
    column = np.zeros(count, dtype=np.bool_)
    column[sorted(indices)] = True
    return column
