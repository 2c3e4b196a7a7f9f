"""Holds: a replica kept free of other work until the head of the promoted fits on it, which is what bounds its wait (lanes.py).

A hold names a job, which is *reserved*: it stays at the head of the promoted until it is placed or gone, so that neither another tenant's turn nor
a refused request passes the drained room on. A hold ends as its job is placed or gone, the lanes are reloaded, or the replica takes no work any
more: then the next step looks for another one. Heads of other lanes hold nothing: what keeps them off a replica (its sequences, its KV cache, what
it has to prefill) keeps off those behind them as well, but for the KV cache, and then promotion bounds their wait.
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

    def begin(self, lane: Lane, job: Job) -> None:
        """The lane's head fits nowhere: if it is the head of the promoted, holds the replica on which it will fit soonest."""
        if lane.name != PROMOTED or lane.name in self.by_lane:
            return
        replica = self._soonest(job)
        if replica is not None:
            replica.held_by = lane.name
            self.by_lane[lane.name] = Hold(lane, job, replica)
            lane.reserved = job
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
            if not hold.lane.count or hold.lane.reserved is None:
                self.end(hold.lane)


def _missing(replica: Replica, job: Job) -> float:
    """The largest share of a capacity that must come free before the job fits."""
    capacity = replica.capacity
    sequences = (replica.sequences + job.request.sequences - capacity.sequences - capacity.ahead) / capacity.sequences
    kv = (replica.kv_tokens + job.kv_tokens - capacity.kv_tokens) / capacity.kv_tokens
    return max(0.0, sequences, kv)
