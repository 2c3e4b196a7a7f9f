"""Holds: a replica kept free of other work until the job that a lane is due to place fits on it.

Two cases. The head of the promoted, whatever it waits for: that is what bounds its wait (lanes.py). And the head of any lane that waits only for the
prefill backlog to shrink, a matter of a step or two: without it, small prompts would fill each gap and a large one would wait for its promotion.

A hold names a job. That of the promoted is *reserved*: the job stays at the head of the promoted until it is placed or gone, so that neither another
tenant's turn nor a refused request passes the drained room on. The hold of another lane goes over to whoever is at that lane's head. A lane holds at
most one replica. A hold ends as its lane places something, its job is gone or its lane empties, the lanes are reloaded, or the replica takes no work
any more: then the next step looks for another one.
"""

from dataclasses import dataclass

from deployments.scheduling.fleet import Fleet
from deployments.scheduling.lane import Lane
from deployments.scheduling.lanes import PROMOTED
from deployments.scheduling.reasons import WaitReason
from deployments.scheduling.replica import Replica, ReplicaStatus
from deployments.scheduling.request import Job


@dataclass(slots=True)
class Hold:
    """`replica` is kept free for `job`, which waits in `lane`."""

    lane: Lane
    job: Job
    replica: Replica

    @property
    def waits_for(self) -> WaitReason | None:
        """What keeps the job off the replica."""
        return self.replica.wait_reason(self.job)


class Holds:
    """The holds by the name of their lane."""

    def __init__(self, fleet: Fleet) -> None:
        self.by_lane: dict[str, Hold] = {}
        self._fleet = fleet

    def of(self, lane: Lane, job: Job) -> Replica | None:
        """The replica that is held for `job`, the head of `lane`, if it is still good for anything."""
        hold = self.by_lane.get(lane.name)
        if hold is None:
            return None
        if hold.replica.status is not ReplicaStatus.READY or self._fleet.by_id.get(hold.replica.replica_id) is not hold.replica:
            self.end(lane)
            return None
        hold.job = job
        return hold.replica

    def begin(self, lane: Lane, job: Job, waits: WaitReason) -> None:
        """The lane's head fits nowhere: holds the replica on which it will fit soonest, where that is called for."""
        promoted = lane.name == PROMOTED
        if lane.name in self.by_lane or not (promoted or waits is WaitReason.PREFILL_BUDGET):
            return
        replica = self._soonest(job) if promoted else self._fleet.short_of_prefill(job)
        if replica is not None:
            replica.held_by = lane.name
            self.by_lane[lane.name] = Hold(lane, job, replica)
            lane.reserved = job if promoted else None
            self._fleet.reserved += 1
            self._fleet.touch(replica)

    def _soonest(self, job: Job) -> Replica | None:
        """The replica on which the job will fit soonest, of the few that are likely to: it is asked again at each step until there is one."""
        return min(self._fleet.likely(), key=lambda replica: (_missing(replica, job), replica.prefill_tokens, replica.replica_id), default=None)

    def end(self, lane: Lane) -> None:
        """The lane needs its hold no longer."""
        hold = self.by_lane.pop(lane.name, None)
        if hold is not None:
            replica = hold.replica
            hold.lane.reserved = replica.held_by = None
            self._fleet.reserved -= 1
            if self._fleet.by_id.get(replica.replica_id) is replica:
                self._fleet.touch(replica)

    def end_stale(self) -> None:
        """Ends the holds of lanes in which nothing waits, and of reserved jobs that are gone."""
        for hold in list(self.by_lane.values()):
            if not hold.lane.count or (hold.lane.name == PROMOTED and hold.lane.reserved is None):
                self.end(hold.lane)


def _missing(replica: Replica, job: Job) -> float:
    """The largest share of a capacity that must come free before the job fits."""
    capacity = replica.capacity
    sequences = (replica.sequences + job.request.sequences - capacity.sequences - capacity.ahead) / capacity.sequences
    kv = (replica.kv_tokens + job.kv_tokens - capacity.kv_tokens) / capacity.kv_tokens
    return max(0.0, sequences, kv)
