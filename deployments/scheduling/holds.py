"""Holds: a replica kept free of other work until the job that a lane is due to place fits on it.

Two cases. The head of the promoted, whatever it waits for: that is what bounds its wait. And the head of any lane that waits only for the prefill
backlog to shrink, a matter of a step or two: without it, small prompts would fill each gap and a large one would wait for its promotion. A lane holds
at most one replica, and a hold ends when the lane places something, empties, or the replica is lost.
"""

from collections.abc import Iterable

from deployments.scheduling.fleet import Fleet
from deployments.scheduling.lane import Lane
from deployments.scheduling.lanes import PROMOTED
from deployments.scheduling.reasons import WaitReason
from deployments.scheduling.replica import Replica, ReplicaStatus
from deployments.scheduling.request import Job


class Holds:
    """Which lane holds which replica."""

    def __init__(self, fleet: Fleet) -> None:
        self.by_lane: dict[str, Replica] = {}
        self._fleet = fleet

    def of(self, lane: Lane) -> Replica | None:
        """The replica that the lane holds, if it is still good for anything."""
        replica = self.by_lane.get(lane.name)
        if replica is not None and (replica.status is not ReplicaStatus.READY or self._fleet.by_id.get(replica.replica_id) is not replica):
            self.end(lane)
            return None
        return replica

    def begin(self, lane: Lane, job: Job, waits: WaitReason) -> None:
        """The lane's head fits nowhere: holds the replica on which it will fit soonest, where that is called for."""
        if lane.name in self.by_lane or not (lane.name == PROMOTED or waits is WaitReason.PREFILL_BUDGET):
            return
        replica = self._soonest(job) if lane.name == PROMOTED else self._fleet.short_of_prefill(job)
        if replica is not None:
            replica.held_by = lane.name
            self.by_lane[lane.name] = replica
            self._fleet.reserved += 1
            self._fleet.touch(replica)

    def _soonest(self, job: Job) -> Replica | None:
        """The replica on which the job will fit soonest. Looks at all: it is asked once for each promoted head."""
        free = [replica for replica in self._fleet.by_id.values() if replica.status is ReplicaStatus.READY and replica.held_by is None]
        return min(free, key=lambda replica: (_missing(replica, job), replica.prefill_tokens, replica.replica_id), default=None)

    def end(self, lane: Lane) -> None:
        """The lane needs its hold no longer."""
        replica = self.by_lane.pop(lane.name, None)
        if replica is not None:
            replica.held_by = None
            self._fleet.reserved -= 1
            if self._fleet.by_id.get(replica.replica_id) is replica:
                self._fleet.touch(replica)

    def end_idle(self, lanes: Iterable[Lane]) -> None:
        """None of these keeps a hold in which nothing waits."""
        for lane in lanes:
            if not lane.count:
                self.end(lane)


def _missing(replica: Replica, job: Job) -> float:
    """The largest share of a capacity that must come free before the job fits."""
    capacity = replica.capacity
    sequences = (replica.sequences + job.request.sequences - capacity.sequences - capacity.ahead) / capacity.sequences
    kv = (replica.kv_tokens + job.kv_tokens - capacity.kv_tokens) / capacity.kv_tokens
    return max(0.0, sequences, kv)
