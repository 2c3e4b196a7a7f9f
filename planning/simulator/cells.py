"""Several simulated cells that help each other: each is a `PeeredCell`, and between them runs the production peering
(`deployments/peering`) over links with round trips.

All cells share one clock and one workload: `homes` says where each request arrives, and its number in the workload is
its id in every cell. What crosses a link (questions, digests, offers, answers) takes half a round trip. A client gets
the bytes of a peer half a round trip after they left it.
"""

import heapq
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from cluster.spec import ClusterSpec
from deployments.peering import Question
from planning.simulator.peered_cell import CellPlan, PeeredCell
from planning.simulator.workload import Workload


@dataclass(frozen=True, slots=True)
class CellsOutcome:
    """Columns over all requests, in seconds; NaN where it did not happen. `home` and `served` are indices of `cells`
    (`served` -1: by none). `hops`: when, from which cell and to which one requests were taken, in that order."""

    cells: tuple[str, ...]
    home: NDArray[np.int64]
    served: NDArray[np.int64]
    ttft_s: NDArray[np.float64]
    finished_s: NDArray[np.float64]
    hops: tuple[tuple[float, int, int], ...]
    reasons: Mapping[str, int]
    refusals: Mapping[str, int]

    def ttft_of(self, cell: str) -> NDArray[np.float64]:
        """The TTFT of a cell's own clients that got an answer."""
        own = (self.home == self.cells.index(cell)) & ~np.isnan(self.ttft_s)
        return np.asarray(self.ttft_s[own], dtype=np.float64)

    def returned(self, within_s: float = 10.0) -> int:
        """Hand-overs that follow one in the other direction between the same cells within so long."""
        last_s: dict[tuple[int, int], float] = {}
        found = 0
        for at_s, source, target in self.hops:
            found += at_s - last_s.get((target, source), -math.inf) < within_s
            last_s[source, target] = at_s
        return found


class CellsSimulator:
    """One run of several cells. `homes`: the index of the plan in which each request of the workload arrives. `rtt_s`:
    the round trip between any two cells, or by their names.

    Raises ValueError where a plan names no region of the spec, or a link has no round trip.
    """

    def __init__(
        self,
        spec: ClusterSpec,
        plans: Sequence[CellPlan],
        workload: Workload,
        homes: NDArray[np.int64],
        rtt_s: float | Mapping[frozenset[str], float],
    ) -> None:
        self.workload, self.homes = workload, homes
        self.now = 0.0
        self.reasons: Counter[str] = Counter()
        self.refusals: Counter[str] = Counter()
        self.hops: list[tuple[float, str, str]] = []
        self._calls: list[tuple[float, int, Callable[[float], None]]] = []
        self._made = 0
        owned = [np.flatnonzero(homes == number).tolist() for number in range(len(plans))]
        self.cells = [PeeredCell(self, plan, spec, own) for plan, own in zip(plans, owned, strict=True)]
        self._by_name = {cell.name: cell for cell in self.cells}
        names = [(one.name, other.name) for one in self.cells for other in self.cells if one is not other]
        if isinstance(rtt_s, Mapping):
            for pair in names:
                if frozenset(pair) not in rtt_s:
                    raise ValueError(f"rtt_s: {' and '.join(pair)} are missing; needed: each pair of cells")
        self._rtt_s = {pair: rtt_s[frozenset(pair)] if isinstance(rtt_s, Mapping) else rtt_s for pair in names}
        period_s = self.cells[0].peering.policy.digest_period_s
        for number, cell in enumerate(self.cells):  # not all at the same moment
            self._at(period_s * number / len(self.cells), partial(self._exchange, cell, period_s))
        self._until_s = float(workload.arrived_s[-1]) if len(workload) else 0.0

    def run(self) -> CellsOutcome:
        """Runs until everything that arrived has ended."""
        cells, calls = self.cells, self._calls
        while True:
            soonest = min(cells, key=PeeredCell.next_s)
            cell_s, call_s = soonest.next_s(), calls[0][0] if calls else math.inf
            self.now = min(cell_s, call_s)
            if self.now == math.inf:
                return self._outcome()
            if call_s <= cell_s:
                heapq.heappop(calls)[2](call_s)
            else:
                soonest.turn(cell_s)

    def carry(self, sender: PeeredCell, target: str, call: Callable[[PeeredCell, float], None]) -> None:
        """Something crosses a link."""
        cell = self._by_name[target]
        self._at(self.now + self._rtt_s[sender.name, target] / 2, lambda now: call(cell, now))

    def _at(self, time_s: float, call: Callable[[float], None]) -> None:
        self._made += 1
        heapq.heappush(self._calls, (time_s, self._made, call))

    def _exchange(self, cell: PeeredCell, period_s: float, now: float) -> None:
        for name, question in cell.peering.ask(now).items():
            if name in self._by_name:
                self.carry(cell, name, partial(self._answer, cell, question))
        if now < self._until_s + max(cell.peering.policy.quiet_s, period_s):
            self._at(now + period_s, partial(self._exchange, cell, period_s))

    def _answer(self, asker: PeeredCell, question: Question, cell: PeeredCell, now: float) -> None:
        self.carry(cell, asker.name, partial(PeeredCell.heard, digest=cell.digest(question, now)))

    def _outcome(self) -> CellsOutcome:
        count, homes = len(self.workload), self.homes
        served = np.full(count, -1)
        ttft_s, finished_s = np.full(count, np.nan), np.full(count, np.nan)
        numbers = {cell.name: number for number, cell in enumerate(self.cells)}
        for index in range(count):
            home = self.cells[homes[index]]
            cell = self._by_name[home.served_by.get(index, home.name)]
            back_s = 0.0 if cell is home else self._rtt_s[home.name, cell.name] / 2
            first_s = cell.outcome.first_s[index]
            if not math.isnan(first_s):
                served[index] = numbers[cell.name]
                ttft_s[index] = first_s + back_s - self.workload.arrived_s[index]
                finished_s[index] = cell.outcome.finished_s[index] + back_s
        hops = tuple((at_s, numbers[source], numbers[target]) for at_s, source, target in self.hops)
        return CellsOutcome(
            tuple(numbers), homes, served, ttft_s, finished_s, hops, dict(self.reasons), dict(self.refusals)
        )
