"""What a gateway and the owner of a model say to each other about hand-overs between cells (`deployments/peering`).
They cross the channel as all its messages do (`messages.py`); an owner in the same process gets and gives the same.

At home. The owner decides, the gateway that holds the client's connection makes the hop:

    owner              gateway
    HopOffered    ->                      post the request's body to the peer; it keeps its place in the lane
                  <-   HopRejected        the peer did not take it
                  <-   HopTaken           the peer has it
    HopConfirmed  ->                      it has left its lane: the client may get what the peer sends
                  <-   HopFirstByte       the client gets the first byte
                  <-   HopFinished        the client has the whole answer
                  <-   HopBroke           the connection to the peer broke, or the peer's answer did
    HopWithdrawn  ->                      close the connection to the peer

Before `HopConfirmed` the client gets no byte of the peer's: home may place the request until then, and whoever is first
at the owner serves it. After `HopFirstByte` a gateway ignores `HopWithdrawn`. A gateway that withdraws a confirmed hop
answers `HopBroke`, and the request waits again, at the head of its lane. A client that leaves is a `Cancel`, as ever.

At the peer. A guest is a `Submit` with the facts of its hop. It is answered `Admitted`, which is what the peer's
gateway tells home as taken, or `GuestRefused`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from deployments.peering import HandOverReason, HopFacts, HopRefusal


@dataclass(frozen=True, slots=True)
class HopOffered:
    """A waiting request is to be offered to `peer`. The facts hold the hand-over's number."""

    peer: str
    hop: HopFacts


@dataclass(frozen=True, slots=True)
class _OfHop:
    """About the hop of that number."""

    request_id: str
    number: int


class HopConfirmed(_OfHop):
    """The request has left its lane: the peer's answer is the client's."""

    __slots__ = ()


class HopWithdrawn(_OfHop):
    """Home has the request, or the peer is given up: the peer is to drop it."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class GuestRefused:
    """The answer to a guest that is not taken."""

    request_id: str
    refusal: HopRefusal


class HopTaken(_OfHop):
    """The peer took the request."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class HopRejected(_OfHop):
    """The peer did not take it."""

    refusal: HopRefusal


class HopFirstByte(_OfHop):
    """The client gets the first byte of the peer's answer."""

    __slots__ = ()


class HopFinished(_OfHop):
    """The client has the peer's whole answer."""

    __slots__ = ()


class HopBroke(_OfHop):
    """The peer cannot be reached, the connection broke, or the answer did."""

    __slots__ = ()


HopReport = HopTaken | HopRejected | HopFirstByte | HopFinished | HopBroke
"""What a gateway reports of a hop that it makes."""
HopMessage = HopOffered | HopConfirmed | HopWithdrawn | GuestRefused | HopReport
HOP_KINDS: tuple[type[HopMessage], ...] = (
    HopOffered,
    HopConfirmed,
    HopWithdrawn,
    GuestRefused,
    HopTaken,
    HopRejected,
    HopFirstByte,
    HopFinished,
    HopBroke,
)

_Name = Annotated[str, StringConstraints(min_length=1, max_length=256)]
_Id = Annotated[str, StringConstraints(pattern=r"^[\x21-\x7e]{1,128}$")]
"""It becomes a part of the id in the header of the engine's request."""
_Mark = Annotated[str, StringConstraints(min_length=1, max_length=64)]
_MAX_S = 1e9
_Span = Annotated[float, Field(ge=-_MAX_S, le=_MAX_S)]


class _Facts(BaseModel):
    """`HopFacts` as a peer sends them: nothing of it is taken on trust."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)

    request_id: _Id
    home: _Name
    epoch: Annotated[int, Field(ge=0, lt=1 << 63)]
    number: Annotated[int, Field(ge=1, lt=1 << 63)]
    hops: Annotated[int, Field(ge=0, le=255)]
    reason: Annotated[HandOverReason, Field(strict=False)]
    model: _Name
    traffic_class: _Name
    tenant: Annotated[str, StringConstraints(max_length=256)]
    residency: Annotated[list[_Name], Field(max_length=256)]
    marks: Annotated[list[_Mark], Field(max_length=16)]
    waited_s: Annotated[float, Field(ge=0, le=_MAX_S)]
    slack_s: _Span
    patience_s: _Span
    slo_s: Annotated[float, Field(ge=0, le=_MAX_S)]
    peer_epoch: Annotated[int, Field(ge=0, lt=1 << 63)]


def facts_of(hop: HopFacts) -> dict[str, Any]:
    """The facts as JSON has them, for the peer."""
    plain = {name: getattr(hop, name) for name in hop.__slots__}
    return {**plain, "reason": hop.reason.value, "residency": sorted(hop.residency), "marks": sorted(hop.marks)}


def read_facts(fields: Mapping[str, Any]) -> HopFacts:
    """The facts in a JSON object. Raises ValueError, which names the field, its value and what is allowed."""
    given = _Facts.model_validate(dict(fields))
    plain = {name: getattr(given, name) for name in HopFacts.__slots__}
    return HopFacts(**{**plain, "residency": frozenset(given.residency), "marks": frozenset(given.marks)})
