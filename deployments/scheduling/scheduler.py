"""The scheduler: the pure core that holds the lane and the leases of one model in one cell.

No clock, no I/O: `now` (seconds, monotonic) and facts come in, decisions go out. The gateway drives it live (`gateway/owner.py`); the simulator and
the tests drive the very same object. One lane, first in first out, for now; the interface is the one that lanes by length keep.

Invariants, held by property tests: a request is waiting, leased or ended, and only one of them; a lease ends exactly once; no replica holds more than
its capacity, save one request alone on an empty replica; placements follow the order of arrival.
"""

import heapq
import itertools
from collections import Counter
from dataclasses import dataclass

from deployments.scheduling.admission import Admission
from deployments.scheduling.lane import Lane
from deployments.scheduling.lease import Lease, Placement, Usage
from deployments.scheduling.pick import pick
from deployments.scheduling.rate import ServiceRate
from deployments.scheduling.reasons import AdmissionKind, Ending, RejectCause, WaitReason
from deployments.scheduling.replica import Capacity, Replica, ReplicaStatus
from deployments.scheduling.request import Request
from deployments.scheduling.snapshot import LaneStats, ReplicaStats, Snapshot

RETRY_AFTER_BOUNDS_S = (1.0, 600.0)


@dataclass(frozen=True, slots=True)
class Settings:
    """What `configure` may change while requests wait: `max_waiting` requests in the lane."""

    max_waiting: int


@dataclass(frozen=True, slots=True)
class Step:
    """What one step decided: requests placed, and requests whose wait ran out."""

    placements: tuple[Placement, ...]
    expired: tuple[Request, ...]


class Scheduler:
    """See the module's docstring. Every method that takes `now` expects it never to run backwards."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._lane = Lane("all")
        self._replicas: dict[str, Replica] = {}
        self._leases: dict[int, Lease] = {}
        self._leased_ids: set[str] = set()
        self._attempts: dict[str, int] = {}
        self._expiries: list[tuple[float, str]] = []
        self._next_lease = itertools.count(1)
        self._rate = ServiceRate()
        self._blocked_by: WaitReason | None = None
        self._submitted = 0
        self._placed = 0
        self._endings: Counter[str] = Counter({ending.value: 0 for ending in Ending})
        self._rejections: Counter[str] = Counter({cause.value: 0 for cause in RejectCause})

    def configure(self, settings: Settings, now: float) -> None:
        """Changes the settings; what waits keeps waiting."""
        self._settings = settings

    def submit(self, request: Request, now: float) -> Admission:
        """Takes a request into its lane, or says why not. `step` places it."""
        self._submitted += 1
        cause = self._reject_cause(request)
        if cause is not None:
            self._rejections[cause.value] += 1
            return Admission(AdmissionKind.REJECT, cause, self._lane.tokens, self._retry_after_s())
        ahead = self._lane.tokens
        self._lane.push(request)
        heapq.heappush(self._expiries, (request.expires_s, request.request_id))
        return Admission(AdmissionKind.QUEUE if len(self._lane) > 1 or self._blocked_by else AdmissionKind.ADMIT, ahead_tokens=ahead)

    def cancel(self, request_id: str, now: float) -> bool:
        """Takes a waiting request out of its lane. False when it does not wait (never did, was placed, or was given up)."""
        was_head = self._is_head(request_id)
        removed = self._lane.remove(request_id) is not None
        if removed:
            self._attempts.pop(request_id, None)
            if was_head:
                self._blocked_by = None
        return removed

    def first_token(self, lease: Lease, now: float) -> None:
        """The replica sent the first byte of the answer: its prompt is prefilled. Ignored for a lease that ended."""
        if lease.lease_id in self._leases:
            self._replicas[lease.replica_id].first_token(lease)
            self._blocked_by = None

    def release(self, lease: Lease, ending: Ending, usage: Usage | None, now: float) -> bool:
        """Ends a lease. False when it had ended before, and then nothing changes. `REFUSED` puts its request back at the lane's head."""
        if self._leases.pop(lease.lease_id, None) is None:
            return False
        request = lease.request
        self._leased_ids.discard(request.request_id)
        self._replicas[lease.replica_id].unbind(lease)
        self._endings[ending.value] += 1
        self._blocked_by = None
        if ending is Ending.REFUSED:
            self._attempts[request.request_id] = lease.attempt
            self._lane.push_front(request)
            heapq.heappush(self._expiries, (request.expires_s, request.request_id))
        elif ending is Ending.FINISHED:
            self._rate.observe(request.kv_tokens if usage is None else usage.prompt_tokens + usage.output_tokens, now)
        if not self._leases:
            self._rate.pause(now)
        return True

    def replica_up(self, replica_id: str, capacity: Capacity, now: float) -> None:
        """A replica is ready; also brings a suspect one back. The capacity of a known replica is replaced, its leases stand."""
        replica = self._replicas.setdefault(replica_id, Replica(replica_id, capacity))
        replica.capacity = capacity
        replica.status = ReplicaStatus.READY
        self._blocked_by = None

    def replica_suspect(self, replica_id: str, now: float) -> None:
        """A replica is silent: nothing new is placed there until `replica_up`. An unknown one is no error."""
        self._set_status(replica_id, ReplicaStatus.SUSPECT)

    def replica_draining(self, replica_id: str, now: float) -> None:
        """A replica takes no new work but finishes what it has. An unknown one is no error."""
        self._set_status(replica_id, ReplicaStatus.DRAINING)

    def replica_lost(self, replica_id: str, now: float) -> tuple[Lease, ...]:
        """A replica is gone: its leases end as failed and are returned, for the shell to tell their clients."""
        replica = self._replicas.get(replica_id)
        if replica is None:
            return ()
        lost = tuple(replica.leases.values())
        for lease in lost:
            self.release(lease, Ending.FAILED, None, now)
        del self._replicas[replica_id]
        self._blocked_by = None
        return lost

    def step(self, now: float) -> Step:
        """Gives up waits that ran out, then places requests in order until the head fits nowhere."""
        expired = self._expire(now)
        placements: list[Placement] = []
        while self._blocked_by is None and (request := self._lane.head()) is not None:
            picked = pick(request, self._replicas.values())
            if isinstance(picked, WaitReason):
                self._blocked_by = picked
                break
            replica, reason = picked
            self._lane.remove(request.request_id)
            attempt = self._attempts.pop(request.request_id, 0) + 1
            lease = Lease(next(self._next_lease), request, replica.replica_id, now, attempt)
            replica.bind(lease)
            self._leases[lease.lease_id] = lease
            self._leased_ids.add(request.request_id)
            self._placed += 1
            self._rate.resume(now)
            placements.append(Placement(request, lease, reason))
        return Step(tuple(placements), expired)

    def next_wakeup(self) -> float | None:
        """When `step` must run though nothing else happens: the next end of a wait. None: never."""
        while self._expiries and self._expiries[0][1] not in self._lane:
            heapq.heappop(self._expiries)
        return self._expiries[0][0] if self._expiries else None

    def snapshot(self, now: float) -> Snapshot:
        """The books at this moment."""
        head = self._lane.head()
        oldest = now - head.arrived_s if head is not None else 0.0
        lane = LaneStats(self._lane.name, len(self._lane), self._lane.tokens, oldest, self._blocked_by if head else None)
        replicas = tuple(
            ReplicaStats(r.replica_id, r.status.value, len(r.leases), r.sequences, r.kv_tokens, r.prefill_tokens) for r in self._replicas.values()
        )
        rejections = dict(self._rejections)
        return Snapshot((lane,), replicas, self._submitted, self._placed, dict(self._endings), rejections, self._rate.tokens_per_s)

    def _reject_cause(self, request: Request) -> RejectCause | None:
        if request.request_id in self._lane or request.request_id in self._leased_ids:
            return RejectCause.DUPLICATE_ID
        if len(self._lane) >= self._settings.max_waiting:
            return RejectCause.LANE_FULL
        return None

    def _retry_after_s(self) -> float:
        low, high = RETRY_AFTER_BOUNDS_S
        rate = self._rate.tokens_per_s
        return min(high, max(low, self._lane.tokens / rate)) if rate else low

    def _set_status(self, replica_id: str, status: ReplicaStatus) -> None:
        if replica_id in self._replicas:
            self._replicas[replica_id].status = status

    def _is_head(self, request_id: str) -> bool:
        head = self._lane.head()
        return head is not None and head.request_id == request_id

    def _expire(self, now: float) -> tuple[Request, ...]:
        expired: list[Request] = []
        while self._expiries and self._expiries[0][0] <= now:
            _, request_id = heapq.heappop(self._expiries)
            if self._is_head(request_id):
                self._blocked_by = None
            request = self._lane.remove(request_id)
            if request is not None:
                self._attempts.pop(request_id, None)
                expired.append(request)
        return tuple(expired)
