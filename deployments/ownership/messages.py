"""What a gateway and the owner of a model say to each other over one full-duplex HTTP exchange: frozen dataclasses
(`deployments/wire.py`). Each direction begins with `Opening`.

The gateway sends `Submit`, `Cancel`, `Hold`, `FirstToken`, `Died`, `Release` and `Refused`; the owner answers
`Admitted`, `Placed` and `Expired`, and tells of `Suspected`; both send `Beat`, so that silence means a stopped process.
Of hand-overs between cells the owner says `PlacedAtPeer` in place of `Placed`, and `Recalled`; the gateway passes on a
peer's account of a request (`Finished`); a `Submit` with a hop, of a peer's request, may be answered `GuestRefused`.

Two machines' clocks are not compared: a message that holds moments holds the sender's time, too (`sent_s`), and the
reader moves them to its own clock.
"""

from dataclasses import dataclass, replace
from typing import get_args

from deployments.ownership.roles import PeerLease
from deployments.peering import HopFacts, HopRefusal
from deployments.protocol import Finished, ReplicaState
from deployments.scheduling import Admission, Ending, Lease, Placement, Request, Suspicion
from deployments.wire import FramedMessages, Wire, WireError, framed

LANES_PATH = "/raylane/lanes"
"""POST `LANES_PATH?model=...&gateway=...&epoch=...&channel=...` opens the exchange. `channel` numbers those that the
gateway opens: a later one ends those before. 409 where the other does not own the model under that epoch, or a later
channel of the gateway came first."""
VERSION = 3
BEAT_S = 0.5
UNRESPONSIVE_AFTER_S = 2.5
"""Who said nothing for so long is given up."""


def moved(request: Request, by_s: float) -> Request:
    """The request on a clock that is ahead by so much."""
    return replace(
        request,
        arrived_s=request.arrived_s + by_s,
        deadline_s=request.deadline_s + by_s,
        expires_s=request.expires_s + by_s,
    )


@dataclass(frozen=True, slots=True)
class Opening:
    """The first message of each direction. Another version is refused."""

    version: int


@dataclass(frozen=True, slots=True)
class Submit:
    """Takes a request to the owner. `hop`: by which a guest came."""

    request: Request
    admitted: bool
    sent_s: float
    hop: HopFacts | None = None


@dataclass(frozen=True, slots=True)
class Cancel:
    """Gives up a request that waits."""

    request_id: str


@dataclass(frozen=True, slots=True)
class Hold:
    """Tells of a lease of an owner before, on that replica or at that peer cell."""

    attempt_id: str
    replica_id: str


@dataclass(frozen=True, slots=True)
class FirstToken:
    """The first token of a lease is there, since `ago_s`: its prompt is prefilled."""

    attempt_id: str
    ago_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Died:
    """The replica, or its engine, died while it ran that lease."""

    attempt_id: str


@dataclass(frozen=True, slots=True)
class Release:
    """A lease ended."""

    attempt_id: str
    ending: Ending


@dataclass(frozen=True, slots=True)
class Refused:
    """A lease's replica took no work; `state` is what it said, None: no connection. Or a peer cell took none, for
    `refusal`."""

    lease: Lease
    state: ReplicaState | None
    sent_s: float
    refusal: HopRefusal | None = None


@dataclass(frozen=True, slots=True)
class Admitted:
    """The answer to `Submit`."""

    request_id: str
    admission: Admission


@dataclass(frozen=True, slots=True)
class Placed:
    """A request got a lease on the replica that listens at `url`."""

    placement: Placement
    url: str


@dataclass(frozen=True, slots=True)
class Expired:
    """A request waited for as long as it may."""

    request_id: str


@dataclass(frozen=True, slots=True)
class Suspected:
    """What is known of a query of death."""

    suspicion: Suspicion
    sent_s: float


@dataclass(frozen=True, slots=True)
class PlacedAtPeer:
    """A request got a lease at a peer cell."""

    peer_lease: PeerLease


@dataclass(frozen=True, slots=True)
class Recalled:
    """The peer cell that has the request under that lease is silent."""

    attempt_id: str


@dataclass(frozen=True, slots=True)
class GuestRefused:
    """The answer to a guest that is not taken."""

    request_id: str
    refusal: HopRefusal


@dataclass(frozen=True, slots=True)
class Beat:
    """A sign of life."""


ToOwner = Submit | Cancel | Hold | FirstToken | Died | Release | Refused | Finished
FromOwner = Admitted | Placed | Expired | Suspected | PlacedAtPeer | Recalled | GuestRefused
Message = Opening | ToOwner | FromOwner | Beat
_WIRE: Wire[Message] = Wire(*get_args(Message))


def encode(message: Message) -> bytes:
    """The message as a channel carries it."""
    return framed(_WIRE.encode(message))


class MessageReader(FramedMessages[Message]):
    """Reads one direction of a channel."""

    def __init__(self) -> None:
        super().__init__(_WIRE)
        self._begun = False

    def feed(self, piece: bytes) -> list[Message]:
        """The messages that are whole now, `Opening` apart. Raises WireError, which names the field, or the version."""
        found = super().feed(piece)
        if found and not self._begun:
            first = found.pop(0)
            if first != Opening(VERSION):
                raise WireError(f"the channel begins with {first}; allowed: {Opening(VERSION)}")
            self._begun = True
        return found
