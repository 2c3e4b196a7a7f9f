"""What a scheduler decides: the answers that its shells act on (`scheduler.py`)."""

from dataclasses import dataclass

from deployments.scheduling.reasons import AdmissionKind, PickReason, RejectCause, WaitReason
from deployments.scheduling.request import Lease, Request, Suspicion


@dataclass(frozen=True, slots=True)
class Admission:
    """`eta_s`: the wait estimate of a queued request (p50, p95); `waits_for`: what it waits for. `retry_after_s` and
    `backlog_s` (seconds of work): rejections only. `clamp_tokens`: to which a step of the ladder has lowered its
    `max_tokens`."""

    kind: AdmissionKind
    lane: str
    cause: RejectCause | None = None
    eta_s: tuple[float, float] | None = None
    backlog_s: float | None = None
    retry_after_s: float | None = None
    waits_for: WaitReason | None = None
    clamp_tokens: int | None = None

    @property
    def accepted(self) -> bool:
        """Whether the request now waits in its lane."""
        return self.kind in (AdmissionKind.ADMIT, AdmissionKind.QUEUE)


@dataclass(frozen=True, slots=True)
class Placement:
    """A decision of `Scheduler.step`: this request runs there, for this reason. `waited_s` in its lane; its
    wait estimate was `eta_s` (p50, p95)."""

    lease: Lease
    reason: PickReason
    lane: str
    promoted: bool
    waited_s: float
    eta_s: tuple[float, float] | None

    @property
    def request(self) -> Request:
        return self.lease.request

    @property
    def replica_id(self) -> str:
        return self.lease.replica_id


@dataclass(frozen=True, slots=True)
class TurnedAway:
    """A request that waited, and is turned away after all: `admission` says why, and when to come back."""

    request: Request
    admission: Admission


@dataclass(frozen=True, slots=True)
class Step:
    """Requests placed, requests whose wait ran out, and those for which it would; and whose standing has changed as a
    suspect."""

    placements: tuple[Placement, ...]
    expired: tuple[Request, ...]
    turned_away: tuple[TurnedAway, ...] = ()
    suspicions: tuple[Suspicion, ...] = ()
