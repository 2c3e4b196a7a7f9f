"""What came and what became of it, counted since the start, by lane and class: the flows that metrics and autoscaling
take differences of.

A request met its SLO when its first token came by its deadline, and missed it when the token came
later or never (rejected for capacity, given up waiting, lost). A request that its client cancelled before its deadline,
or that broke its own tenant's limit, is neither. All counts for the lane, by its name, in which the request waited
last.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from deployments.scheduling.fleet import Fleet
from deployments.scheduling.forecasts import Forecasts
from deployments.scheduling.lane import Lane
from deployments.scheduling.lanes import PROMOTED, Lanes
from deployments.scheduling.learned_state import LearnedState
from deployments.scheduling.placing import Placing
from deployments.scheduling.reasons import Ending, RejectCause, WaitReason
from deployments.scheduling.replica import Replica
from deployments.scheduling.request import Job
from deployments.scheduling.snapshot import FlowStats, LaneStats, ReplicaStats, Snapshot
from deployments.scheduling.suspects import Suspects

_OWN_FAULT = frozenset(
    {
        RejectCause.DUPLICATE_ID,
        RejectCause.TENANT_REQUESTS,
        RejectCause.TENANT_TOKENS,
        RejectCause.TENANT_CONCURRENCY,
        RejectCause.QUERY_OF_DEATH,
    }
)


@dataclass(slots=True)
class FlowTally:
    """Of one lane and class: requests that arrived, their work and prompts (tokens), SLOs met and missed; `slo_s`: the
    last one's SLO."""

    arrived: int = 0
    work: float = 0.0
    prompt_tokens: int = 0
    met: int = 0
    missed: int = 0
    slo_s: float = 0.0


@dataclass
class Tally:
    """Of one model. `adopted`: leases of an earlier owner; `endings` of leases. `finished` requests had booked
    `finished_work`; the engines counted `output_tokens` for the `counted` of them that they reported."""

    flows: dict[tuple[str, str], FlowTally] = field(default_factory=dict)
    submitted: int = 0
    adopted: int = 0
    endings: Counter[str] = field(default_factory=lambda: Counter({ending.value: 0 for ending in Ending}))
    finished: int = 0
    finished_work: float = 0.0
    output_tokens: int = 0
    counted: int = 0

    def arrived(self, job: Job) -> None:
        """A request came, whatever becomes of it."""
        request = job.request
        flow = self._flow(job)
        flow.arrived += 1
        flow.work += job.cost
        flow.prompt_tokens += request.prompt_tokens * request.sequences
        flow.slo_s = request.deadline_s - request.arrived_s

    def rejected(self, job: Job, cause: RejectCause) -> None:
        """It was turned away."""
        if cause not in _OWN_FAULT:
            self._flow(job).missed += 1

    def first_token(self, job: Job, now: float) -> None:
        """Its first token came."""
        flow = self._flow(job)
        if now <= job.request.deadline_s:
            flow.met += 1
        else:
            flow.missed += 1

    def gave_up(self, job: Job, now: float) -> None:
        """It left its lane unplaced."""
        if now > job.request.deadline_s:
            self._flow(job).missed += 1

    def ended_unanswered(self, job: Job, ending: Ending, now: float) -> None:
        """Its lease ended before its first token. One that waits again (`REFUSED`) may still be in time."""
        if ending is Ending.FAILED or (ending is Ending.CANCELLED and now > job.request.deadline_s):
            self._flow(job).missed += 1

    def _flow(self, job: Job) -> FlowTally:
        key = (job.home_name, job.request.traffic_class)
        flow = self.flows.get(key)
        if flow is None:
            flow = self.flows[key] = FlowTally()
        return flow


def take_snapshot(
    lanes: Lanes,
    fleet: Fleet,
    placing: Placing,
    forecasts: Forecasts,
    learned_state: LearnedState,
    tally: Tally,
    suspects: Suspects,
    rejections: Mapping[tuple[str, str], int],
    now: float,
    etas: bool,
) -> Snapshot:
    """Everything that others may know of the scheduler, at `now`. `etas`: with wait estimates, which are most of the
    work."""
    names, rate = {lane.name for lane in lanes.lanes}, placing.rate.per_s
    closed = fleet.why_none_is_open()
    return Snapshot(
        lanes=tuple(
            _lane(lanes, lane, placing.waits.get(lane.name) or closed, forecasts, rate, now, etas) for lane in lanes.all
        ),
        replicas=tuple(_replica(replica) for replica in fleet.by_id.values()),
        submitted=tally.submitted,
        placed=placing.placed,
        adopted=tally.adopted,
        promoted=placing.promoted,
        endings=dict(tally.endings),
        rejections=dict(rejections),
        tokens_per_s=rate,
        output_error=learned_state.outputs.error,
        other_lane=learned_state.other_lane / learned_state.settled if learned_state.settled else None,
        prefix_trust=learned_state.prefixes.trust,
        flows=tuple(
            FlowStats(lane, name, f.arrived, f.work, f.prompt_tokens, f.met, f.missed, f.slo_s)
            for (lane, name), f in tally.flows.items()
            if lane in names
        ),
        finished=tally.finished,
        finished_work=tally.finished_work,
        output_tokens=tally.output_tokens,
        counted=tally.counted,
        suspects=suspects.all(now),
        bans=suspects.bans,
        aside=len(lanes.aside),
    )


def _replica(r: Replica) -> ReplicaStats:
    maximum = r.capacity
    learned_state = (len(r.leases), r.sequences, r.kv_tokens, r.prefill_tokens, r.prefill_tokens_per_s, r.held_by)
    return ReplicaStats(r.replica_id, r.status.value, *learned_state, maximum.sequences, maximum.kv_tokens, r.tpot_s)


def _lane(
    lanes: Lanes, lane: Lane, waits_for: WaitReason, forecasts: Forecasts, rate: float | None, now: float, etas: bool
) -> LaneStats:
    oldest = lane.oldest()
    eta = forecasts.etas.get(lane.name)
    return LaneStats(
        name=lane.name,
        waiting=lane.count,
        work_tokens=lane.work,
        work_s=lane.work / rate if rate else None,
        oldest_wait_s=now - oldest.request.arrived_s if oldest is not None else 0.0,
        head_waits_for=waits_for if lane.count else None,
        eta_s=None if lane.name == PROMOTED or not etas else forecasts.shown(lanes.lanes.index(lane), now),
        covered=eta.p95.within if eta else 0,
        estimated=eta.p95.total if eta else 0,
        censored=eta.p95.censored if eta else 0,
    )
