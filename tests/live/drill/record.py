"""What the clients of a drill saw, request by request. Live and simulated drills write the same columns."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

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
    finished_s: float | None
    end: SendEnd
    again: bool = False
    twice: bool = False


@dataclass(frozen=True, slots=True)
class DrillRecord:
    """Columns over all requests, in the order in which they were sent; NaN where it did not happen. `home`, `asked` and
    `served` are indices of `cells` (-1: none); `end` is that of `ENDS`.

    `replica_s`: seconds that replicas were there, by cell (empty: not known). `usd`: what they cost (None: no price is
    known). `last_hop_s`: when the last request was offered to a cell that was lost, from the loss (None: not known).
    """

    cells: tuple[str, ...]
    sent_s: Column
    ttft_s: Column
    finished_s: Column
    home: NDArray[np.int64]
    asked: NDArray[np.int64]
    served: NDArray[np.int64]
    end: NDArray[np.int64]
    again: NDArray[np.bool_]
    twice: NDArray[np.bool_]
    replica_s: Mapping[str, float] = field(default_factory=dict)
    usd: float | None = None
    last_hop_s: float | None = None

    def __len__(self) -> int:
        return len(self.sent_s)

    @property
    def handed_over(self) -> NDArray[np.bool_]:
        """Served by another cell than the one that was asked."""
        found: NDArray[np.bool_] = (self.served >= 0) & (self.served != self.asked)
        return found

    def of(self, end: SendEnd) -> NDArray[np.bool_]:
        """Those that ended so."""
        found: NDArray[np.bool_] = self.end == ENDS.index(end)
        return found

    def met(self, slo_s: float) -> NDArray[np.bool_]:
        """Those whose first token came within the SLO."""
        return np.nan_to_num(self.ttft_s, nan=np.inf) <= slo_s


def record_of(
    cells: tuple[str, ...],
    requests: Iterable[SentRequest],
    replica_s: Mapping[str, float] | None = None,
    usd: float | None = None,
    last_hop_s: float | None = None,
) -> DrillRecord:
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
        seconds(one.finished_s for one in ordered),
        indices(number[one.home] for one in ordered),
        indices(number[one.asked] for one in ordered),
        indices(number[one.served] for one in ordered),
        indices(ENDS.index(one.end) for one in ordered),
        np.array([one.again for one in ordered], dtype=np.bool_),
        np.array([one.twice for one in ordered], dtype=np.bool_),
        replica_s or {},
        usd,
        last_hop_s,
    )
