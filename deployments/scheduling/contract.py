"""The scheduler's contract: what a shell may ask of it and tell it, and the decisions that it gets.

The shells are the lane owner, live (`ownership/lane_owner.py`), and the simulator's cell. They give the time (`now`,
in seconds of one clock that never runs backwards) and facts, and act on decisions; a shell decides nothing itself. No
call blocks or raises for what a client or a replica did: what is unknown, or has ended, is ignored.
"""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Protocol

from cluster.spec import DEFAULT_GROUP
from deployments.scheduling.policy import SchedulingPolicy, TenantUse
from deployments.scheduling.reasons import AdmissionKind, Ending, PickReason, RejectCause, WaitReason
from deployments.scheduling.replica import Capacity
from deployments.scheduling.request import Lease, Request, Suspicion, Usage
from deployments.scheduling.snapshot import Snapshot, WaitingRequest


@dataclass(frozen=True, slots=True)
class Admission:
    """`eta_s`: the wait estimate of a queued request (p50, p95); `waits_for`: what it waits for. `retry_after_s` and
    `backlog_s` (seconds of work): rejections only."""

    kind: AdmissionKind
    lane: str
    cause: RejectCause | None = None
    eta_s: tuple[float, float] | None = None
    backlog_s: float | None = None
    retry_after_s: float | None = None
    waits_for: WaitReason | None = None

    @property
    def accepted(self) -> bool:
        """Whether the request now waits in its lane."""
        return self.kind in (AdmissionKind.ADMIT, AdmissionKind.QUEUE)


@dataclass(frozen=True, slots=True)
class Placement:
    """A decision of `Scheduler.step`: this request runs there, for this reason. `waited_s` in its lane; its
    wait estimate was `eta_s` (p50, p95)."""

    request: Request
    lease: Lease
    reason: PickReason
    lane: str
    promoted: bool
    waited_s: float
    eta_s: tuple[float, float] | None

    @property
    def replica_id(self) -> str:
        """The replica that got the request."""
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


class WaitingRequests(Protocol):
    """What waits, for whoever may serve it instead. Suspects are left out: nobody else is to serve them."""

    def of(self, request_id: str, now: float) -> WaitingRequest | None:
        """The request, if it waits in a lane."""

    def all(self, now: float) -> tuple[WaitingRequest, ...]:
        """Those in the lanes."""

    def expected(self, request: Request, now: float) -> WaitingRequest:
        """The request as it would wait if it were submitted now."""


class SchedulerContract(Protocol):
    """Of one model in one cell. After each call that changes something `step` is due: it alone places."""

    def configure(self, policy: SchedulingPolicy, now: float) -> None:
        """Changes the settings. What waits keeps waiting, in the lane that is now its own."""

    # Requests: from `submit` to the end of the wait.
    def submit(self, request: Request, now: float, admitted: bool = False) -> Admission:
        """Takes a request into its lane, or rejects it. `admitted`: an earlier owner had taken it in, so no limit or
        cap rejects it now."""

    def cancel(self, request_id: str, now: float) -> bool:
        """Takes a waiting request out of its lane, or ends one that was withdrawn. False for any other."""

    def withdraw(self, request_id: str, now: float) -> bool:
        """Takes a waiting request out of its lane: a peer cell gets it, as its next attempt. It is not given up, and
        goes on counting against its tenant's limits, until `cancel` or `put_back`. False when it does not wait."""

    def put_back(self, request_id: str, now: float) -> bool:
        """A withdrawn request waits again, at its lane's head. False when it was not withdrawn."""

    def first_token_away(self, request_id: str, now: float) -> None:
        """The client of a withdrawn request has its first token."""

    def step(self, now: float) -> Step:
        """Decides: gives up waits, promotes, places. Each decision is handed over once."""

    def next_wakeup(self) -> float | None:
        """When `step` is due though nothing else happens; None: never."""

    # Leases: from a placement to `release`, which ends each exactly once.
    def first_token(self, lease: Lease, now: float) -> None:
        """The lease's prompt is prefilled."""

    def died(self, lease: Lease, now: float) -> None:
        """The replica, or its engine, died while the lease ran. It stands until `release`."""

    def release(self, lease: Lease, ending: Ending, usage: Usage | None, now: float) -> bool:
        """Ends a lease. False when it had ended before. `REFUSED` puts its request back at its lane's head."""

    def learn(self, lease: Lease, usage: Usage, now: float) -> None:
        """The engine's account of a finished request, before or after its lease ends."""

    def adopt(self, reported: Lease, started: bool, now: float) -> Lease | None:
        """Adopts a lease of an earlier owner, as its replica reports it. `started`: its prompt is prefilled. None for
        an unknown replica."""

    # Facts about replicas, and what an earlier owner knew.
    def replica_up(self, replica_id: str, capacity: Capacity, now: float) -> None:
        """It is ready (again), though perhaps cordoned. The capacity of a known one is replaced, its leases stand."""

    def replica_unresponsive(self, replica_id: str, now: float) -> None:
        """It is unresponsive: nothing new goes there until `replica_up`."""

    def replica_draining(self, replica_id: str, now: float) -> None:
        """It takes no new work but finishes what it has."""

    def replica_cordoned(self, replica_id: str, now: float) -> None:
        """An operator keeps new work off it, whatever else is said of it; also one that is not known yet."""

    def replica_uncordoned(self, replica_id: str, now: float) -> None:
        """...and does no more."""

    def replica_lost(self, replica_id: str, now: float) -> tuple[Lease, ...]:
        """It is gone: its leases end as failed, and are returned."""

    def expect_replica(self, ready_at_s: float | None, now: float, group: str = DEFAULT_GROUP) -> None:
        """The group's next replica should be ready then; None: nobody knows of one that starts. Counts while there is
        no other."""

    def recall(self, reported: Suspicion, now: float) -> None:
        """What an earlier owner knew of a query of death."""

    def used_elsewhere(self, uses: tuple[TenantUse, ...], now: float) -> None:
        """What tenants have taken of their limits in all other cells together since the last call, and how many
        requests they have there at once now; who is not named has none."""

    # What a shell may read. Reading changes nothing.
    @property
    def waiting(self) -> WaitingRequests:
        """What waits, and how long still."""

    def snapshot(self, now: float, etas: bool = True) -> Snapshot:
        """The state at this moment; without `etas` in a quarter of the time."""

    def head_waits(self) -> tuple[tuple[str, WaitReason], ...]:
        """What the head of each lane in which something waits waits for, by the lane's name."""

    def suspicions(self, now: float) -> tuple[Suspicion, ...]:
        """The bodies that are suspects or banned (`suspects.py`)."""

    def tenant_use(self) -> tuple[TenantUse, ...]:
        """What tenants with limits have taken here, and how many requests they have at once."""

    def is_draining(self, replica_id: str) -> bool:
        """Whether a known replica drains."""

    @property
    def replica_ids(self) -> Collection[str]:
        """The replicas that are known."""

    @property
    def cordoned(self) -> Collection[str]:
        """The ids that operators keep new work off, of replicas known and not."""

    @property
    def submitted(self) -> int:
        """Requests so far."""

    @property
    def is_idle(self) -> bool:
        """Whether nothing waits in a lane and no lease stands."""
