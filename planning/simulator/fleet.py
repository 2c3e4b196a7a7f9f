"""The replicas of a simulated cell: how each comes, serves and goes.

A replica starts (`WARMING` for its start-up time), is `READY`, and leaves in one of two ways: it drains (what runs ends, nothing new comes) or it
fails (what runs is lost, and a successor starts). While it is cordoned nothing new comes, and it stays.
"""

import math
from dataclasses import dataclass
from enum import StrEnum

from deployments.engine_model.engine import Engine


class FleetEventKind(StrEnum):
    """What happens to the fleet."""

    START = "start"
    DRAIN = "drain"
    FAIL = "fail"
    CORDON = "cordon"
    UNCORDON = "uncordon"


@dataclass(frozen=True, slots=True)
class FleetEvent:
    """At `at_s`, a replica starts; or that befalls the one of that number. Numbers go by the order of starting, from 0."""

    at_s: float
    kind: FleetEventKind
    replica: int = -1

    def __post_init__(self) -> None:
        if not 0 <= self.at_s < math.inf:
            raise ValueError(f"at_s={self.at_s}: a time from the start, in seconds")
        if self.kind is not FleetEventKind.START and self.replica < 0:
            raise ValueError(f"replica={self.replica}: the number of the replica that is to {self.kind}, from 0")


@dataclass(slots=True, eq=False)
class SimulatedReplica:
    """One replica. Times are seconds from the start; infinite while they have not come."""

    number: int
    engine: Engine
    started_s: float
    ready_s: float
    ended_s: float = math.inf
    drained_s: float = math.inf
    due_s: float = math.inf
    """When it is to be ready."""
    leases: int = 0

    @property
    def name(self) -> str:
        """As the scheduler knows it: names order by number."""
        return f"r{self.number:05}"

    @property
    def draining(self) -> bool:
        """It takes no new work."""
        return self.drained_s < math.inf

    @property
    def serves(self) -> bool:
        """Ready, or draining."""
        return self.ready_s < math.inf and self.ended_s == math.inf


@dataclass(frozen=True, slots=True)
class Life:
    """A replica's life, for the account of GPU-hours: it is paid for from `started_s` to `ended_s`."""

    started_s: float
    ready_s: float
    ended_s: float
    drained_s: float = math.inf
    """When it was told to drain."""
