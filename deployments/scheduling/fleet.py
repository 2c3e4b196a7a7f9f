"""The replicas of a model, kept so that the best one is found without looking at all of them; outliers among them; and
when the next one is expected.

Two heaps with lazy invalidation (an entry counts only while its replica's `version` is the one it was pushed with):
open replicas by their load, which the pick defines (`pick.py`); and by free KV, which tells at once when no replica
has room for a large job. Every change of a replica's bookings goes through `touch`.
"""

import heapq
from statistics import median
from typing import Any

from deployments.scheduling.pick import Pick
from deployments.scheduling.reasons import WaitReason
from deployments.scheduling.replica import Capacity, Replica, ReplicaStatus
from deployments.scheduling.request import Job, Request

PROBES = 4
"""So many of the least loaded replicas are looked at for each job, and, where it fits on none of them, as many of those
with the most free KV."""
SLOW = 2.5
PROBATION_S = 30.0
MIN_REPLICAS = 3
"""Of two replicas nobody can say which is the slow one."""
CHECK_S = 5.0
_Heap = list[tuple[Any, str, int, Replica]]
"""Of (key, replica id, version, replica)."""


def _first(heap: _Heap) -> Replica | None:
    """The best replica; what is out of date goes."""
    while heap:
        _, _, version, replica = heap[0]
        if version == replica.version:
            return replica
        heapq.heappop(heap)
    return None


def _best(heap: _Heap) -> list[Replica]:
    """The `PROBES` best, in order. What was looked at goes back into the heap; what is out of date does not."""
    seen: _Heap = []
    while heap and len(seen) < PROBES:
        entry = heapq.heappop(heap)
        if entry[2] == entry[3].version:
            seen.append(entry)
    for entry in seen:
        heapq.heappush(heap, entry)
    return [entry[3] for entry in seen]


def _living(heap: _Heap) -> _Heap:
    living = [entry for entry in heap if entry[2] == entry[3].version]
    heapq.heapify(living)
    return living


class Fleet:
    """Replicas by id, and the two orders over the open ones. The pick says which is loaded least."""

    def __init__(self, pick: Pick) -> None:
        self.by_id: dict[str, Replica] = {}
        self.reserved = 0
        """How many are held for a lane's head."""
        self.cordoned: set[str] = set()
        """The ids that an operator keeps new work off, of replicas known and not."""
        self._versions = 0
        self._pick = pick
        self._by_load: _Heap = []
        self._by_kv: _Heap = []

    def up(self, replica_id: str, capacity: Capacity) -> Replica:
        """A replica is ready; a known one keeps its leases."""
        replica = self.by_id.get(replica_id)
        if replica is None:
            replica = self.by_id[replica_id] = Replica(replica_id, capacity)
        replica.capacity = capacity
        replica.become(ReplicaStatus.READY, replica_id in self.cordoned)
        self.touch(replica)
        return replica

    def set_status(self, replica_id: str, status: ReplicaStatus) -> None:
        """Changes a known replica's status; an unknown one is no error."""
        replica = self.by_id.get(replica_id)
        if replica is not None:
            replica.become(status, replica.cordoned)
            self.touch(replica)

    def is_draining(self, replica_id: str) -> bool:
        """Whether a known replica drains."""
        replica = self.by_id.get(replica_id)
        return replica is not None and replica.reported is ReplicaStatus.DRAINING

    def cordon(self, replica_id: str, cordoned: bool) -> None:
        """An operator keeps new work off a replica, or stops doing so. The replica may be unknown yet, or
        unresponsive."""
        (self.cordoned.add if cordoned else self.cordoned.discard)(replica_id)
        replica = self.by_id.get(replica_id)
        if replica is not None:
            replica.become(replica.reported, cordoned)
            self.touch(replica)

    def remove(self, replica: Replica) -> None:
        """The replica is gone."""
        del self.by_id[replica.replica_id]
        self._renumber(replica)
        self._trim()

    def touch(self, replica: Replica) -> None:
        """The replica's bookings changed."""
        self._renumber(replica)
        if replica.open:
            heapq.heappush(self._by_load, (self._pick.load(replica), replica.replica_id, replica.version, replica))
            minus_free_kv = replica.kv_tokens - replica.capacity.kv_tokens
            heapq.heappush(self._by_kv, (minus_free_kv, replica.replica_id, replica.version, replica))
        self._trim()

    def order_by(self, pick: Pick) -> None:
        """Another pick orders the replicas from now on."""
        self._pick = pick
        for replica in self.by_id.values():
            self.touch(replica)

    def _trim(self) -> None:
        """Drops the dead entries of both orders where they outnumber the living."""
        maximum = 4 * len(self.by_id) + 64
        if len(self._by_load) > maximum:
            self._by_load = _living(self._by_load)
        if len(self._by_kv) > maximum:
            self._by_kv = _living(self._by_kv)

    def _renumber(self, replica: Replica) -> None:
        self._versions += 1
        replica.version = self._versions

    @property
    def any_open(self) -> bool:
        """Whether any replica could take anything that no hold reserves."""
        heap = self._by_load
        return bool(heap) and (heap[0][2] == heap[0][3].version or _first(heap) is not None)

    @property
    def any_ready(self) -> bool:
        """Whether any replica takes work, now or once it has room."""
        return any(replica.status is ReplicaStatus.READY for replica in self.by_id.values())

    def fitting(self, job: Job) -> list[Replica] | WaitReason:
        """Some of the open replicas that `job` fits on, of the least loaded or else of those with the most free KV; or
        what it waits for.

        Looks at a few, however many there are: a job that fits nowhere is asked for at each step.
        """
        found: list[Replica] = []
        waits: WaitReason | None = None
        for replica in _best(self._by_load):
            waits = replica.wait_reason(job)
            if waits is None:
                found.append(replica)
        if found:
            return found
        if waits is None:
            return self.why_none_is_open()
        return self._fits_rarely(job, waits)

    def likely(self) -> list[Replica]:
        """The open replicas on which a job may fit soonest: the least loaded, and those with the most free KV."""
        return list({replica.replica_id: replica for replica in (*_best(self._by_load), *_best(self._by_kv))}.values())

    def _fits_rarely(self, job: Job, waits: WaitReason) -> list[Replica] | WaitReason:
        """The least loaded have no room for it: does one of those with the most free KV?"""
        freest = _first(self._by_kv)
        if freest is None or freest.free_kv_tokens < job.kv_tokens:
            return waits
        return [replica for replica in _best(self._by_kv) if replica.wait_reason(job) is None][:1] or waits

    @property
    def is_deserted(self) -> bool:
        """Whether no replica takes work, and none will before another has started."""
        return not any(replica.may_serve for replica in self.by_id.values())

    def why_none_is_open(self) -> WaitReason:
        """What all lanes wait for while `any_open` is false."""
        ready = [replica for replica in self.by_id.values() if replica.status is ReplicaStatus.READY]
        if not ready:
            return WaitReason.NO_READY_REPLICA
        if self.reserved:
            return WaitReason.RESERVED
        prefilling = any(replica.prefill_tokens >= replica.capacity.prefill_budget for replica in ready)
        return WaitReason.PREFILL_BUDGET if prefilling else WaitReason.SEQUENCES


class Outliers:
    """Ejects replicas that decode far slower than the others (a throttled GPU, a noisy neighbour), for a while, and
    never the last one.

    A replica is slow when its time per output token (a decayed mean of the engine's own account) is more than `SLOW`
    times the fleet's median. It comes back after `PROBATION_S` with a clean slate: what it then shows decides.
    """

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._ejected: dict[str, float] = {}
        self._checked_s = 0.0

    def judge(self, now: float) -> None:
        """Ejects and forgives. Costs nothing between two checks."""
        if now - self._checked_s < CHECK_S:
            return
        self._checked_s = now
        for replica_id, since in list(self._ejected.items()):
            if now - since >= PROBATION_S:
                del self._ejected[replica_id]
                self._forgive(replica_id)
        measured = [
            replica
            for replica in self._fleet.by_id.values()
            if replica.status is ReplicaStatus.READY and replica.tpot_s is not None
        ]
        if len(measured) < MIN_REPLICAS:
            return
        limit = SLOW * median(replica.tpot_s for replica in measured if replica.tpot_s is not None)
        slow = [replica for replica in measured if replica.tpot_s is not None and replica.tpot_s > limit]
        for replica in slow[: len(measured) - 1]:
            self._ejected[replica.replica_id] = now
            self._fleet.set_status(replica.replica_id, ReplicaStatus.EJECTED)

    def _forgive(self, replica_id: str) -> None:
        replica = self._fleet.by_id.get(replica_id)
        if replica is not None and replica.reported is ReplicaStatus.EJECTED:
            replica.tpot_s = None
            self._fleet.set_status(replica_id, ReplicaStatus.READY)


class Starting:
    """When the next replica is expected. `doubt`: something changed, so that what waits may wait in vain.

    While there is no replica the lanes are a waiting room: a request waits as long as the start of the next replica
    fits its patience (`expires_s`). When that will be is a fact from outside. While nobody knows, everybody waits: the
    first request is what makes a replica start.
    """

    def __init__(self, fleet: Fleet) -> None:
        self.ready_at_s: float | None = None
        self.doubt = False
        self._fleet = fleet

    def expect(self, ready_at_s: float | None) -> None:
        """The next replica should be ready then; None: nobody knows of any."""
        self.ready_at_s = ready_at_s
        self.doubt = True

    @property
    def any_ready(self) -> bool:
        """Whether a replica takes work, now or once it has room: else the lanes are a waiting room."""
        return self._fleet.any_ready

    @property
    def any_open(self) -> bool:
        """Whether whoever comes now would find room somewhere."""
        return self._fleet.any_open

    def wait_s(self, now: float) -> float:
        """How long every request must wait for a replica to be there; 0 where one is, and where nobody knows."""
        if self.ready_at_s is None or self.ready_at_s <= now or not self._fleet.is_deserted:
            return 0.0
        return self.ready_at_s - now

    def is_too_late_for(self, request: Request, now: float) -> bool:
        """Whether the request would give up before there is a replica."""
        wait_s = self.wait_s(now)
        return wait_s > 0 and now + wait_s > request.expires_s
