"""What a gateway and the owner of a model say to each other: one full-duplex HTTP exchange, one JSON object a line in
both directions.

The gateway sends `Submit`, `Cancel`, `Hold`, `FirstToken`, `Died`, `Release` and `Refused`; the owner answers
`Admitted`, `Placed` and `Expired`, and tells of `Suspected`; both send `Beat`, so that silence means a stopped process.
Of hand-overs between cells the owner says `PlacedAtPeer` in place of `Placed`, and `Recalled`; a `Submit` with a hop,
of a peer's request, may be answered `GuestRefused`.
Times cross the wire as ages and spans, never as moments: two machines' clocks are not compared.
"""

import json
from dataclasses import dataclass
from typing import Any, get_args

from deployments.ownership.roles import PeerLease, lease_of_peer
from deployments.peering import HopFacts, HopRefusal
from deployments.protocol import line_of
from deployments.scheduling import (
    Admission,
    AdmissionKind,
    Ending,
    Lease,
    PickReason,
    Placement,
    RejectCause,
    Request,
    Suspicion,
    WaitReason,
)
from deployments.wire import from_plain

LANES_PATH = "/raylane/lanes"
"""POST `LANES_PATH?model=...&gateway=...&epoch=...&channel=...` opens the exchange. `channel` numbers those that the
gateway opens: a later one ends those before. 409 where the other does not own the model under that epoch, or a later
channel of the gateway came first."""
BEAT_S = 0.5
UNRESPONSIVE_AFTER_S = 2.5
"""Who said nothing for so long is given up."""
MAX_LINE_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Waiting:
    """A request as it crosses the wire: `scheduling.Request` with ages and spans for times."""

    request_id: str
    prompt_tokens: int
    max_tokens: int | None
    age_s: float
    deadline_in_s: float
    expires_in_s: float
    sequences: int
    traffic_class: str
    tenant: str
    prefix: list[int]
    chunk_tokens: int
    attempts: int
    digest: str = ""
    max_prompt_tokens: int = 0
    guest_of: str = ""
    hops: int = 0
    body_bytes: int = 0

    def request(self, now: float) -> Request:
        """The request on this process's clock."""
        return Request(
            self.request_id,
            self.prompt_tokens,
            self.max_tokens,
            now - self.age_s,
            now + self.deadline_in_s,
            now + self.expires_in_s,
            self.sequences,
            self.traffic_class,
            self.tenant,
            tuple(self.prefix),
            self.chunk_tokens,
            self.attempts,
            self.digest,
            self.max_prompt_tokens,
            self.guest_of,
            self.hops,
            self.body_bytes,
        )


@dataclass(frozen=True, slots=True)
class Submit:
    """Takes a request to the owner. `hop`: the facts of the hop by which a guest came."""

    waiting: Waiting
    admitted: bool
    hop: HopFacts | None = None


@dataclass(frozen=True, slots=True)
class Cancel:
    """Gives up a request that waits."""

    request_id: str


@dataclass(frozen=True, slots=True)
class Hold:
    """Tells of a lease of an owner before."""

    attempt_id: str


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

    waiting: Waiting
    replica_id: str
    attempt: int
    state: str | None
    refusal: HopRefusal | None = None


@dataclass(frozen=True, slots=True)
class Admitted:
    """The answer to `Submit`."""

    request_id: str
    kind: AdmissionKind
    lane: str
    cause: RejectCause | None
    eta_s: list[float] | None
    backlog_s: float | None
    retry_after_s: float | None
    waits_for: WaitReason | None = None

    @property
    def admission(self) -> Admission:
        """As the scheduler gave it."""
        eta_s = None if self.eta_s is None else (self.eta_s[0], self.eta_s[1])
        rest = (self.backlog_s, self.retry_after_s, self.waits_for)
        return Admission(self.kind, self.lane, self.cause, eta_s, *rest)


@dataclass(frozen=True, slots=True)
class Placed:
    """A request got a lease."""

    request_id: str
    replica_id: str
    url: str
    reason: PickReason
    lane: str
    promoted: bool
    waited_s: float
    eta_s: list[float] | None
    attempt: int
    prefill_tokens: int
    kv_tokens: int
    output_tokens: int
    home: int

    @property
    def attempt_id(self) -> str:
        """The id under which the engine is to get it."""
        return f"{self.request_id}-{self.attempt}"

    def placement(self, request: Request, now: float) -> Placement:
        """The placement of `request`, whose lease began now."""
        lease = Lease(
            0,
            request,
            self.replica_id,
            now,
            self.attempt,
            self.prefill_tokens,
            self.kv_tokens,
            self.output_tokens,
            self.home,
        )
        eta_s = None if self.eta_s is None else (self.eta_s[0], self.eta_s[1])
        return Placement(request, lease, self.reason, self.lane, self.promoted, self.waited_s, eta_s)


@dataclass(frozen=True, slots=True)
class Expired:
    """A request waited for as long as it may."""

    request_id: str


@dataclass(frozen=True, slots=True)
class Suspected:
    """What is known of a query of death (`scheduling.Suspicion`); `age_s`: since its last death."""

    key: str
    deaths: int
    answered: bool
    age_s: float

    def suspicion(self, now: float) -> Suspicion:
        """On this process's clock."""
        return Suspicion(self.key, self.deaths, self.answered, now - self.age_s)


@dataclass(frozen=True, slots=True)
class PlacedAtPeer:
    """A request got a lease at a peer cell."""

    peer: str
    attempt: int
    hop: HopFacts
    answer_s: float

    @property
    def request_id(self) -> str:
        return self.hop.request_id

    def lease(self, request: Request, now: float) -> PeerLease:
        """The lease of `request`, which began now."""
        return PeerLease(self.peer, lease_of_peer(self.peer, request, self.attempt, now), self.hop, self.answer_s)


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


Message = (
    Submit
    | Cancel
    | Hold
    | FirstToken
    | Died
    | Release
    | Refused
    | Admitted
    | Placed
    | Expired
    | Suspected
    | PlacedAtPeer
    | Recalled
    | GuestRefused
    | Beat
)
_KINDS: dict[str, type[Message]] = {kind.__name__.lower(): kind for kind in get_args(Message)}
_ENUMS = {
    "ending": Ending,
    "kind": AdmissionKind,
    "cause": RejectCause,
    "reason": PickReason,
    "refusal": HopRefusal,
    "waits_for": WaitReason,
}


def waiting_of(request: Request, now: float) -> Waiting:
    """The request as it crosses the wire."""
    return Waiting(
        request.request_id,
        request.prompt_tokens,
        request.max_tokens,
        now - request.arrived_s,
        request.deadline_s - now,
        request.expires_s - now,
        request.sequences,
        request.traffic_class,
        request.tenant,
        list(request.prefix),
        request.chunk_tokens,
        request.attempts,
        request.digest,
        request.max_prompt_tokens,
        request.guest_of,
        request.hops,
        request.body_bytes,
    )


def admitted_of(request_id: str, admission: Admission) -> Admitted:
    """The owner's answer as it crosses the wire."""
    eta_s = None if admission.eta_s is None else list(admission.eta_s)
    rest = (admission.backlog_s, admission.retry_after_s, admission.waits_for)
    return Admitted(request_id, admission.kind, admission.lane, admission.cause, eta_s, *rest)


def placed_of(placement: Placement, url: str) -> Placed:
    """A placement as it crosses the wire."""
    lease = placement.lease
    return Placed(
        placement.request.request_id,
        placement.replica_id,
        url,
        placement.reason,
        placement.lane,
        placement.promoted,
        placement.waited_s,
        None if placement.eta_s is None else list(placement.eta_s),
        lease.attempt,
        lease.prefill_tokens,
        lease.kv_tokens,
        lease.output_tokens,
        lease.home,
    )


def suspected_of(reported: Suspicion, now: float) -> Suspected:
    """A suspicion as it crosses the wire."""
    return Suspected(
        reported.key, reported.deaths, reported.answered, now - reported.since_s if reported.deaths else 0.0
    )


def encode(message: Message) -> bytes:
    """One line, newline included."""
    return line_of(message)


def decode(line: bytes) -> Message:
    """The message in one line. Raises ValueError when it is none."""
    try:
        fields: dict[str, Any] = json.loads(line)
        kind = _KINDS[fields.pop("type")]
        for name, enum in _ENUMS.items():
            if fields.get(name) is not None:
                fields[name] = enum(fields[name])
        if "waiting" in fields:
            fields["waiting"] = Waiting(**fields["waiting"])
        if fields.get("hop") is not None:
            fields["hop"] = from_plain(fields["hop"], HopFacts)
        return kind(**fields)
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"not a message of a lane's channel: {line[:200]!r}") from error
