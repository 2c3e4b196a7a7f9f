"""The replicas of a model, kept so that the best one is found without looking at all of them; and the outliers among
them.

For each kind, the replicas of one group and context, two heaps with lazy invalidation (an entry counts only while its
replica's `version` is the one it was pushed with): open replicas by their load, which the pick defines (`pick.py`); and
by free KV, which tells at once when no replica has room for a large job. Every change of a replica's bookings goes
through `touch`.
"""

import heapq
from collections import defaultdict
from collections.abc import Iterator, Mapping
from statistics import median, median_low

from deployments.scheduling.itl_cap import TURN_S, ItlCap, ItlTarget
from deployments.scheduling.pick import Pick
from deployments.scheduling.reasons import WaitReason
from deployments.scheduling.replica import Capacity, Kind, OrderEntries, Replica, ReplicaStatus
from deployments.scheduling.request import Groups, Job

PROBES = 4
"""So many of the least loaded replicas of a kind are looked at for each job, and, where it fits on none of them, as
many of those with the most free KV."""
SLOW = 2.5
PROBATION_S = 30.0
MIN_REPLICAS = 3
"""Of two replicas nobody can say which is the slow one."""
CHECK_S = 5.0


def _first(heap: OrderEntries) -> Replica | None:
    """The best replica; what is out of date goes."""
    while heap:
        _, _, version, replica = heap[0]
        if version == replica.version:
            return replica
        heapq.heappop(heap)
    return None


def _best(heap: OrderEntries) -> list[Replica]:
    """The `PROBES` best, in order. What was looked at goes back into the heap; what is out of date does not."""
    seen: OrderEntries = []
    while heap and len(seen) < PROBES:
        entry = heapq.heappop(heap)
        if entry[2] == entry[3].version:
            seen.append(entry)
    for entry in seen:
        heapq.heappush(heap, entry)
    return [entry[3] for entry in seen]


def _living(heap: OrderEntries) -> OrderEntries:
    living = [entry for entry in heap if entry[2] == entry[3].version]
    heapq.heapify(living)
    return living


class Fleet:
    """Replicas by id, and those of each kind in two orders, by group. The pick says which is loaded least."""

    def __init__(self, pick: Pick) -> None:
        self.by_id: dict[str, Replica] = {}
        self.reserved = 0
        """How many are held for a lane's head."""
        self.cordoned: set[str] = set()
        """The ids that an operator keeps new work off, of replicas known and not."""
        self._versions = 0
        self._pick = pick
        self.kinds: list[Kind] = []
        """One for each group and context."""

    def up(self, replica_id: str, capacity: Capacity) -> Replica:
        """A replica is ready; a known one keeps its leases."""
        replica = self.by_id.get(replica_id)
        if replica is None:
            replica = self.by_id[replica_id] = Replica(replica_id, capacity)
        replica.capacity = capacity
        replica.become(ReplicaStatus.READY, replica_id in self.cordoned)
        self._enter_kind(replica)
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
        del self.by_id[replica.replica_id]
        self._versions += 1
        replica.version = self._versions
        self._leave_kind(replica)

    def touch(self, replica: Replica) -> None:
        """The replica's bookings changed."""
        self._versions += 1
        replica.version = version = self._versions
        kind = replica.kind or self._enter_kind(replica)
        if replica.open:
            heapq.heappush(kind.by_load, (self._pick.load(replica), replica.replica_id, version, replica))
            minus_free_kv = replica.kv_tokens - replica.capacity.kv_tokens
            heapq.heappush(kind.by_kv, (minus_free_kv, replica.replica_id, version, replica))
            self._trim(kind)

    def order_by(self, pick: Pick) -> None:
        """Another pick orders the replicas from now on."""
        self._pick = pick
        for replica in self.by_id.values():
            self.touch(replica)

    def _enter_kind(self, replica: Replica) -> Kind:
        """The replica is new, or its capacity was replaced."""
        capacity = replica.capacity
        key = (capacity.group, capacity.context_tokens)
        if replica.kind is not None:
            if replica.kind.key == key:
                return replica.kind
            self._leave_kind(replica)
        kind = next((one for one in self.kinds if one.key == key), None)
        if kind is None:
            kind = Kind(capacity.group, capacity.context_tokens)
            self.kinds.append(kind)
        replica.kind = kind
        kind.replicas[replica.replica_id] = replica
        return kind

    def _leave_kind(self, replica: Replica) -> None:
        kind, replica.kind = replica.kind, None
        if kind is not None:
            del kind.replicas[replica.replica_id]
            if not kind.replicas:
                self.kinds.remove(kind)
            self._trim(kind)

    def _trim(self, kind: Kind) -> None:
        """Drops the dead entries of both orders where they outnumber the living."""
        maximum = 4 * len(kind.replicas) + 64
        if len(kind.by_load) > maximum:
            kind.by_load = _living(kind.by_load)
        if len(kind.by_kv) > maximum:
            kind.by_kv = _living(kind.by_kv)

    @property
    def any_open(self) -> bool:
        """Whether any replica could take anything that no hold reserves."""
        for kind in self.kinds:
            heap = kind.by_load
            if heap and (heap[0][2] == heap[0][3].version or _first(heap) is not None):
                return True
        return False

    @property
    def any_ready(self) -> bool:
        """Whether any replica takes work, now or once it has room."""
        return any(replica.status is ReplicaStatus.READY for replica in self.by_id.values())

    @property
    def ready(self) -> int:
        """How many replicas take work, now or once they have room."""
        return sum(replica.status is ReplicaStatus.READY for replica in self.by_id.values())

    def replicas_of(self, groups: Groups) -> Iterator[Replica]:
        for kind in self.kinds:
            if groups is None or kind.group in groups:
                yield from kind.replicas.values()

    def any_ready_of(self, groups: Groups) -> bool:
        """As `any_ready`, of those groups."""
        return any(replica.status is ReplicaStatus.READY for replica in self.replicas_of(groups))

    def fitting(self, job: Job) -> list[Replica] | WaitReason:
        """Some of the open replicas that `job` fits on, of the least loaded or else of those with the most free KV; or
        what it waits for.

        They are of the first of its groups in which it fits. Looks at a few of each kind, however many there are: a job
        that fits nowhere is asked for at each step.
        """
        if job.groups is None:
            return self._fitting_of(self.kinds, job)
        waits: WaitReason | None = None
        for name in job.groups:
            kinds = [kind for kind in self.kinds if kind.group == name and job.context_tokens <= kind.context_tokens]
            found = self._fitting_of(kinds, job)
            if isinstance(found, list):
                return found
            waits = found if waits is None or waits is WaitReason.NO_READY_REPLICA else waits
        return waits or WaitReason.NO_READY_REPLICA

    def _fitting_of(self, kinds: list[Kind], job: Job) -> list[Replica] | WaitReason:
        """...of these kinds. What one kind has no room for, another one may have."""
        found: list[Replica] = []
        waits: WaitReason | None = None
        for kind in kinds:
            for replica in _best(kind.by_load):
                reason = replica.wait_reason(job)
                if reason is None:
                    found.append(replica)
                else:
                    waits = reason
        if found:
            if len(kinds) > 1:
                found.sort(key=lambda replica: (self._pick.load(replica), replica.replica_id))
            return found
        if waits is None:
            return self._why_closed(kinds)
        for kind in kinds:
            if rare := _fitting_rarely(kind, job):
                found += rare
        return found or waits

    def likely(self, job: Job) -> list[Replica]:
        """The open replicas on which the job may fit soonest: the least loaded, and those with the most free KV. Where
        only other groups have open ones, all ready ones of its own: else others might take each place that comes free.
        """
        found = [
            replica
            for kind in self.kinds
            for replica in {one.replica_id: one for one in (*_best(kind.by_load), *_best(kind.by_kv))}.values()
            if replica.suits(job)
        ]
        if found or job.groups is None:
            return found
        free = (one for one in self.replicas_of(job.groups) if one.held_by is None and one.suits(job))
        return [replica for replica in free if replica.status is ReplicaStatus.READY]

    def is_deserted_by(self, groups: Groups) -> bool:
        """Whether no replica of those groups takes work, and none will before another has started."""
        return not any(replica.may_serve for replica in self.replicas_of(groups))

    def why_none_is_open(self, groups: Groups = None) -> WaitReason:
        """What all lanes that those groups serve wait for while none of their replicas is open."""
        return self._why_closed([one for one in self.kinds if groups is None or one.group in groups])

    def _why_closed(self, kinds: list[Kind]) -> WaitReason:
        ready = [
            replica for kind in kinds for replica in kind.replicas.values() if replica.status is ReplicaStatus.READY
        ]
        if not ready:
            return WaitReason.NO_READY_REPLICA
        if self.reserved and (kinds == self.kinds or any(replica.held_by is not None for replica in ready)):
            return WaitReason.RESERVED
        prefilling = any(replica.prefill_tokens >= replica.capacity.prefill_budget for replica in ready)
        capped = any(replica.capped(1) for replica in ready)
        return WaitReason.PREFILL_BUDGET if prefilling else WaitReason.ITL if capped else WaitReason.SEQUENCES


def _fitting_rarely(kind: Kind, job: Job) -> list[Replica]:
    """The least loaded have no room for it: one of those with the most free KV may have."""
    freest = _first(kind.by_kv)
    if freest is None or freest.free_kv_tokens < job.kv_tokens:
        return []
    return [replica for replica in _best(kind.by_kv) if replica.wait_reason(job) is None][:1]


class Outliers:
    """Ejects replicas that decode far slower than the others (a throttled GPU, a noisy neighbour), for a while, and
    never the last one.

    A replica is slow when its time per output token (a decayed mean of the engine's own account) is more than `SLOW`
    times the median of its group. It comes back after `PROBATION_S` with a clean slate: what it then shows decides.
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
        measured: defaultdict[str, list[Replica]] = defaultdict(list)
        for replica in self._fleet.by_id.values():
            if replica.status is ReplicaStatus.READY and replica.tpot_s is not None:
                measured[replica.capacity.group].append(replica)
        for replicas in measured.values():
            self._judge_group(replicas, now)

    def _judge_group(self, replicas: list[Replica], now: float) -> None:
        """Groups run on different hardware: a replica is compared with those of its own."""
        if len(replicas) < MIN_REPLICAS:
            return
        limit = SLOW * median(replica.tpot_s for replica in replicas if replica.tpot_s is not None)
        slow = [replica for replica in replicas if replica.tpot_s is not None and replica.tpot_s > limit]
        for replica in slow[: len(replicas) - 1]:
            self._ejected[replica.replica_id] = now
            self._fleet.set_status(replica.replica_id, ReplicaStatus.EJECTED)

    def _forgive(self, replica_id: str) -> None:
        replica = self._fleet.by_id.get(replica_id)
        if replica is not None and replica.reported is ReplicaStatus.EJECTED:
            replica.tpot_s = None
            self._fleet.set_status(replica_id, ReplicaStatus.READY)


class ItlCaps:
    """The caps that keep the time between tokens (`itl_cap.py`), of all replicas. `targets`: by class."""

    def __init__(self, fleet: Fleet, targets: Mapping[str, ItlTarget]) -> None:
        self._fleet = fleet
        self._targets = targets
        self._turned_s = 0.0

    def configure(self, targets: Mapping[str, ItlTarget]) -> None:
        """With other targets all begin anew."""
        if targets != self._targets:
            self._targets = targets
            for replica in self._fleet.by_id.values():
                replica.itl = None
                self._fleet.touch(replica)
            for replica in self._fleet.by_id.values():
                self.attend(replica)

    def attend(self, replica: Replica) -> None:
        """The replica is ready: it begins with what the others of its group have learned, else where the target says,
        else without a cap."""
        maximum, group = replica.capacity.sequences, replica.capacity.group
        if not self._targets or (replica.itl is not None and replica.itl.maximum == maximum):
            return
        known = [one.itl.caps for one in self._fleet.replicas_of((group,)) if one.itl is not None]
        starts = {
            name: median_low(caps[name].sequences for caps in known) if known else target.starts.get(group, maximum)
            for name, target in self._targets.items()
        }
        replica.itl = ItlCap(self._targets, maximum, starts)
        self._fleet.touch(replica)

    def judge(self, now: float) -> None:
        """Moves the caps. Costs nothing between two turns."""
        if not self._targets or now - self._turned_s < TURN_S:
            return
        self._turned_s = now
        for replica in self._fleet.by_id.values():
            if replica.itl is not None:
                replica.itl.turn(replica.leases.values(), replica.sequences, now)
                self._fleet.touch(replica)
