"""What the clients of a drill saw, request by request."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from planning.several_regions import WINDOW_S
from planning.simulator.faults import FaultKind
from tests.live.drill.drill import Drill

Column = NDArray[np.float64]


class SendEnd(StrEnum):
    """How a request ended for its client."""

    ANSWERED = "answered"
    REJECTED = "rejected"
    """A gateway answered with an error status."""
    RESET = "reset"
    """The connection broke before the answer was whole."""
    ERROR_EVENT = "error_event"
    """The stream ended with an error event."""
    UNANSWERED = "unanswered"
    """No endpoint answered in time."""


ENDS = tuple(SendEnd)


@dataclass(frozen=True, slots=True)
class SentRequest:
    """One request (seconds from the start). `home`: the cell whose client sent it; `asked`: the cell whose endpoint
    took it; `served`: the cell that answered; None: none did.

    `again`: its client had sent it before, and that answer broke; it counts from the break. `twice`: the answer had
    more than what was asked for.
    """

    sent_s: float
    home: str
    asked: str | None
    served: str | None
    ttft_s: float | None
    end: SendEnd
    again: bool = False
    twice: bool = False


@dataclass(frozen=True, slots=True)
class DrillRecord:
    """Columns over all requests, in the order in which they were sent; NaN where it did not happen. `home`, `asked` and
    `served` are indices of `cells` (-1: none); `end` is that of `ENDS`.
    """

    cells: tuple[str, ...]
    sent_s: Column
    ttft_s: Column
    home: NDArray[np.int64]
    asked: NDArray[np.int64]
    served: NDArray[np.int64]
    end: NDArray[np.int64]
    again: NDArray[np.bool_]
    twice: NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.sent_s)

    @property
    def handed_over(self) -> NDArray[np.bool_]:
        """Served by another cell than the one that was asked."""
        found: NDArray[np.bool_] = (self.served >= 0) & (self.served != self.asked)
        return found

    def of(self, end: SendEnd) -> NDArray[np.bool_]:
        found: NDArray[np.bool_] = self.end == ENDS.index(end)
        return found

    @property
    def lost(self) -> dict[str, int]:
        """Requests that got no whole answer, by how they ended."""
        return {end.value: int(count) for end in ENDS[1:] if (count := self.of(end).sum())}

    def next_answer_s(self, drill: Drill) -> float:
        """Within how many seconds 99 % had the first token of their next answer: of the clients whose answer broke; and
        of those of a lost cell that asked within a window of the loss, or waited for an answer then."""
        chosen = self.again
        if drill.kind is FaultKind.REGION_LOSS:
            gone = self.home == self.cells.index(drill.cell)
            first_s = self.sent_s + np.nan_to_num(self.ttft_s, nan=np.inf)
            near = (self.sent_s < drill.at_s + WINDOW_S) & (first_s >= drill.at_s)
            chosen = chosen | (gone & (self.asked != self.home) & near)
        waited_s = (self.ttft_s - np.maximum(0.0, drill.at_s - self.sent_s))[chosen]
        return float(np.quantile(waited_s[~np.isnan(waited_s)], 0.99))


def record_of(cells: tuple[str, ...], requests: Iterable[SentRequest]) -> DrillRecord:
    """The columns of these requests."""
    ordered = sorted(requests, key=lambda one: one.sent_s)
    number = {name: index for index, name in enumerate(cells)} | {None: -1}

    def seconds(values: Iterable[float | None]) -> Column:
        return np.array([np.nan if value is None else value for value in values], dtype=np.float64)

    def indices(values: Iterable[int]) -> NDArray[np.int64]:
        return np.array(list(values), dtype=np.int64)

    return DrillRecord(
        cells,
        seconds(one.sent_s for one in ordered),
        seconds(one.ttft_s for one in ordered),
        indices(number[one.home] for one in ordered),
        indices(number[one.asked] for one in ordered),
        indices(number[one.served] for one in ordered),
        indices(ENDS.index(one.end) for one in ordered),
        np.array([one.again for one in ordered], dtype=np.bool_),
        np.array([one.twice for one in ordered], dtype=np.bool_),
    )
