"""A start as the directory knows it: what a replica reports of it, the line in the life log, and the summary of a cell.
Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from cluster.fetch_progress import FetchProgress
from deployments.starts.phases import Phase, PhaseSeconds

MAX_CAUSE_CHARS = 300
GIVEN_UP_AFTER = 3
"""A model whose starts failed so often in a row is no longer waited for. It is tried again all the same."""


class StartOutcome(StrEnum):
    """What has become of a start."""

    STARTING = "starting"
    READY = "ready"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class StartReport:
    """What a starting replica tells: its process began `elapsed_s` ago, it has been in `phase` for `in_phase_s`, and
    that is how its time is divided so far. Durations only: the directory's clock is another one. `fetching`: None
    unless it fetches now."""

    replica_id: str
    model: str
    node_id: str
    phase: Phase
    in_phase_s: float
    seconds: PhaseSeconds
    fetching: FetchProgress | None = None

    @property
    def elapsed_s(self) -> float:
        return sum(self.seconds.values())


@dataclass(frozen=True, slots=True)
class ReplicaStart:
    """One start. It was asked for at `asked_unix_s` (time of day), is in `phase` since `since_unix_s` (the last one, if
    it has ended), and ended at `ended_unix_s`. `seconds` by phase, the wait for a node included.

    `cause` and `log` of one that failed: the error in one line, and the file with all of it.
    """

    replica_id: str
    model: str
    node_id: str
    asked_unix_s: float
    phase: Phase
    since_unix_s: float
    seconds: PhaseSeconds
    outcome: StartOutcome = StartOutcome.STARTING
    ended_unix_s: float = 0.0
    cause: str = ""
    log: str = ""
    fetching: FetchProgress | None = None
    """None unless it fetches now."""

    @property
    def wall_s(self) -> float:
        """From the request for the replica to the end of its start, by the directory's clock; 0 while it starts."""
        return max(0.0, self.ended_unix_s - self.asked_unix_s) if self.ended_unix_s else 0.0

    @property
    def at_unix_s(self) -> float:
        """When its line is written."""
        return self.ended_unix_s


@dataclass(frozen=True, slots=True)
class FailingModel:
    """A model whose last starts failed, `failures` in a row, the last of them `last`. The next one begins its work at
    `retry_unix_s`. `ever_ready`: whether a start went well since the directory's own."""

    model: str
    failures: int
    last: ReplicaStart
    retry_unix_s: float
    ever_ready: bool = False


@dataclass(frozen=True, slots=True)
class StartTally:
    """Starts of one model that ended so since the directory's start. `seconds`: the sum over those that went well; of
    those that failed, `failed_in` counts by phase."""

    model: str
    ready: int = 0
    seconds: PhaseSeconds = field(default_factory=dict)
    failed_in: Mapping[Phase, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class CellStarts:
    """The starts of a cell: those under way, the last ones that went well (oldest first), the models whose starts fail,
    and the tallies."""

    running: tuple[ReplicaStart, ...] = ()
    done: tuple[ReplicaStart, ...] = ()
    failing: tuple[FailingModel, ...] = ()
    tallies: tuple[StartTally, ...] = ()

    def running_of(self, model: str) -> list[ReplicaStart]:
        return [start for start in self.running if start.model == model]

    def done_of(self, model: str) -> list[ReplicaStart]:
        return [start for start in self.done if start.model == model]

    def failing_of(self, model: str) -> FailingModel | None:
        return next((one for one in self.failing if one.model == model), None)

    def of_replica(self, replica_id: str) -> ReplicaStart | None:
        """How that replica started; None where that is not known, or forgotten."""
        return next((start for start in reversed(self.done) if start.replica_id == replica_id), None)
