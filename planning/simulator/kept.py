"""What simulated cells keep of their requests: for all cells together, and of those that have no lane."""

from collections import Counter
from dataclasses import dataclass
from typing import Protocol

from deployments.scheduling import RejectCause, Request
from planning.simulator.workload import Workload


class ServingCell(Protocol):
    """A cell that has placed a request."""

    name: str


class Kept(Protocol):
    """What is kept of the requests of all cells."""

    workload: Workload
    reasons: Counter[str]
    refusals: Counter[str]
    hops: list[tuple[float, str, str]]
    served: dict[int, ServingCell]
    """Which cell placed a request last, as far as its home knows."""
    broken: set[int]
    refused: set[int]

    @property
    def arrived(self) -> bool:
        """Whether nothing arrives any more."""
        ...

    def answers(self, index: int, now: float) -> None:
        """The first byte of an answer leaves the cell that its client has asked."""
        ...

    def answered(self, index: int, now: float) -> None:
        """The last one does."""
        ...

    def rejected(self, index: int, cell: str, now: float) -> None:
        """A cell has no room for a request of its own clients, and no peer took it."""
        ...


@dataclass(frozen=True, slots=True)
class Outside:
    """An own request in no lane: offered to a peer, or rejected for that cause (None: it may not be served here).
    `wait_s`: how long it would wait here (None: for ever)."""

    request: Request
    cause: RejectCause | None = None
    wait_s: float | None = None
