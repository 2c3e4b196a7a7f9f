"""Departures: the ends of replicas, gateways, Serve's controllers and directories, and the events of which a cell's
lives consist. Pure.

There is an event for each that began to serve, and for each that ended; all else follows from these alone
(`departure_history.py`). Replicas' starts are events, too (`deployments/starts`). The cause distinguishes a planned end
from a loss.
"""

from dataclasses import dataclass, field
from enum import StrEnum

from deployments.starts.start import ReplicaStart
from deployments.wire import Natural, Wire

MAX_DETAIL_CHARS = 300
MAX_DIGESTS = 16
"""A departure names the bodies of at most so many requests."""


class MemberKind(StrEnum):
    """What ended."""

    REPLICA = "replica"
    GATEWAY = "gateway"
    CONTROLLER = "controller"
    DIRECTORY = "directory"


class DepartureCause(StrEnum):
    """Why it ended. The first three are planned, the others are losses.

    `STOPPED`: Serve stopped it (fewer are wanted, an upgrade, the end of the cell). `DRAINED`: by an operator.
    `SPOT_NOTICE`: its machine was to be taken away. `PROCESS_DIED`: its process ended without a word. `ENGINE_DIED`:
    its engine's process did. `ENGINE_STALLED`: its engine worked at requests without a step for too long.
    `UNRESPONSIVE`: it said nothing for so long that it was given up.
    """

    STOPPED = "stopped"
    DRAINED = "drained"
    SPOT_NOTICE = "spot_notice"
    PROCESS_DIED = "process_died"
    ENGINE_DIED = "engine_died"
    ENGINE_STALLED = "engine_stalled"
    UNRESPONSIVE = "unresponsive"

    @property
    def planned(self) -> bool:
        return self in (DepartureCause.STOPPED, DepartureCause.DRAINED, DepartureCause.SPOT_NOTICE)


@dataclass(frozen=True, slots=True)
class Lost:
    """What ran there when it ended. `broken`: requests whose clients got an error, or a reset; `placed_again`: requests
    that went to another replica, since no byte of their answer had been sent. `tokens`: what all of them were booked
    with (prompt and expected output, over all sequences).

    `digests`: of the requests' bodies, so that the same one is recognised in several departures; at most `MAX_DIGESTS`.
    """

    broken: Natural = 0
    placed_again: Natural = 0
    tokens: Natural = 0
    digests: tuple[str, ...] = ()

    @property
    def requests(self) -> int:
        return self.broken + self.placed_again

    def plus(self, other: "Lost") -> "Lost":
        digests = tuple(dict.fromkeys((*self.digests, *other.digests)))[:MAX_DIGESTS]
        return Lost(
            self.broken + other.broken, self.placed_again + other.placed_again, self.tokens + other.tokens, digests
        )


@dataclass(frozen=True, slots=True)
class Ended:
    """It ended, as `reported_by` says: a gateway's id, or nothing where the directory saw it itself. Each tells of its
    own requests in `lost`.

    `who` is the replica's or gateway's id; of the others it names the process. `model`: a replica's `Model.group_key`.
    `at_unix_s`: when its end was noticed (time of day), `pid` its process, `detail` what it said of its end in its own
    words.
    """

    kind: MemberKind
    who: str
    at_unix_s: float
    cause: DepartureCause
    model: str = ""
    pid: int = 0
    reported_by: str = ""
    lost: Lost = field(default_factory=Lost)
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Departure(Ended):
    """An end as the first said who told of it, with what all of them lost.

    `replaced_by` came in its place and was ready at `ready_unix_s`; None: nothing came so far, or nothing is to come.
    `back_unix_s`: it was given up, and spoke again then.
    """

    replaced_by: str | None = None
    ready_unix_s: float | None = None
    back_unix_s: float | None = None

    @property
    def awaits(self) -> bool:
        """Whether something is to come in its place. Of what Serve stopped nobody can say: fewer may be wanted, or the
        next may be there already."""
        return self.cause is not DepartureCause.STOPPED and self.replaced_by is None and self.back_unix_s is None


@dataclass(frozen=True, slots=True)
class DepartureTally:
    """Departures of one kind, model and cause since the directory's start, and what was lost with them."""

    kind: MemberKind
    model: str
    cause: DepartureCause
    count: int
    lost: Lost


@dataclass(frozen=True, slots=True)
class Departures:
    """The last ones, oldest first, and the tallies of all."""

    last: tuple[Departure, ...] = ()
    tallies: tuple[DepartureTally, ...] = ()


@dataclass(frozen=True, slots=True)
class Ready:
    """It serves from `at_unix_s` on (time of day), on the machine `where` (`departure_tracker.machine`)."""

    kind: MemberKind
    who: str
    at_unix_s: float
    model: str = ""
    pid: int = 0
    where: str = ""


Event = Ready | Ended | ReplicaStart
EVENTS: Wire[Event] = Wire(Ready, Ended, ReplicaStart)
