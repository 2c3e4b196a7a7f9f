"""Takes the scheduler's snapshot."""

from typing import TYPE_CHECKING

from deployments.scheduling.lane import Lane
from deployments.scheduling.lanes import PROMOTED
from deployments.scheduling.replica import Replica
from deployments.scheduling.snapshot import FlowStats, LaneStats, ReplicaStats, Snapshot

if TYPE_CHECKING:
    from deployments.scheduling.scheduler import Scheduler


def take_snapshot(scheduler: "Scheduler", now: float, etas: bool) -> Snapshot:
    """Everything that others may know of the scheduler, at `now`. `etas`: with what would be promised, which is most of the work."""
    books, tally = scheduler.books, scheduler.tally
    lanes = {lane.name for lane in scheduler.lanes.lanes}
    return Snapshot(
        lanes=tuple(_lane(scheduler, lane, now, etas) for lane in scheduler.lanes.all),
        replicas=tuple(_replica(replica) for replica in scheduler.fleet.by_id.values()),
        submitted=scheduler.submitted,
        placed=scheduler.placing.placed,
        adopted=scheduler.adopted,
        promoted=scheduler.placing.promoted,
        endings=dict(scheduler.endings),
        rejections=dict(scheduler.refusals.counts),
        tokens_per_s=scheduler.rate.per_s,
        output_error=books.outputs.error,
        other_lane=books.other_lane / books.settled if books.settled else None,
        prefix_trust=books.prefixes.trust,
        flows=tuple(
            FlowStats(lane, name, f.arrived, f.work, f.prompt_tokens, f.kept, f.missed, f.slo_s)
            for (lane, name), f in tally.flows.items()
            if lane in lanes
        ),
        finished=tally.finished,
        finished_work=tally.finished_work,
        output_tokens=tally.output_tokens,
        counted=tally.counted,
        suspects=scheduler.suspects.all(now),
        bans=scheduler.suspects.bans,
        aside=len(scheduler.lanes.aside),
    )


def _replica(r: Replica) -> ReplicaStats:
    most = r.capacity
    books = (len(r.leases), r.sequences, r.kv_tokens, r.prefill_tokens, r.prefill_tokens_per_s, r.held_by)
    return ReplicaStats(r.replica_id, r.status.value, *books, most.sequences, most.kv_tokens, r.tpot_s)


def _lane(scheduler: "Scheduler", lane: Lane, now: float, etas: bool) -> LaneStats:
    oldest = lane.oldest()
    rate = scheduler.rate.per_s
    eta = scheduler.forecasts.etas.get(lane.name)
    return LaneStats(
        name=lane.name,
        waiting=lane.count,
        work_tokens=lane.work,
        work_s=lane.work / rate if rate else None,
        oldest_wait_s=now - oldest.request.arrived_s if oldest is not None else 0.0,
        head_waits_for=(scheduler.placing.waits.get(lane.name) or scheduler.fleet.why_none_is_open()) if lane.count else None,
        eta_s=None if lane.name == PROMOTED or not etas else scheduler.forecasts.shown(scheduler.lanes.lanes.index(lane), now),
        covered=eta.p95.within if eta else 0,
        promised=eta.p95.total if eta else 0,
        censored=eta.p95.censored if eta else 0,
    )
