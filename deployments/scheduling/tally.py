"""What came and what became of it, counted since the start, by lane and class: the flows that metrics and autoscaling
take differences of.

A request met its SLO when its first token came by its deadline, and missed it when the token came
later or never (rejected for capacity, given up waiting, lost). A request that its client cancelled before its deadline,
or that was turned away for its own or its tenant's doing, is neither. All counts for the lane, by its name, in which
the request waited last.

A guest (a request that a peer cell handed over) is that cell's demand, and meets or misses its SLO there. Here it
counts as load (what waits, what runs, what is finished), and apart from all flows (`Tally.guests`).
"""

import dataclasses
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from deployments.ladder_stats import LadderStats
from deployments.lane_stats import LaneStats
from deployments.scheduling.fleet import Fleet
from deployments.scheduling.forecasts import Forecasts
from deployments.scheduling.group_rates import GroupTally
from deployments.scheduling.ladder import ClassCounts
from deployments.scheduling.lane import Lane
from deployments.scheduling.lanes import PROMOTED, Lanes
from deployments.scheduling.learned_state import LearnedState
from deployments.scheduling.placing import Placing
from deployments.scheduling.reasons import Blame, Ending, RejectCause, WaitReason
from deployments.scheduling.replica import Replica
from deployments.scheduling.request import Groups, Job
from deployments.scheduling.snapshot import DemandStats, FlowStats, GroupStats, ReplicaStats, Snapshot
from deployments.scheduling.suspects import Suspects


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
    `finished_work`; the engines counted `output_tokens` for the `counted` of them that they reported. `withdrawn`: so
    many left their lanes for a peer cell."""

    flows: dict[tuple[str, str], FlowTally] = field(default_factory=dict)
    demands: dict[tuple[str, tuple[str, ...]], FlowTally] = field(default_factory=dict)
    """By lane and groups, of a model with groups: what arrived."""
    guests: FlowTally = field(default_factory=FlowTally)
    """Requests of other cells. They are their homes' demand, and count in none of the flows here."""
    submitted: int = 0
    adopted: int = 0
    endings: Counter[str] = field(default_factory=lambda: Counter({ending.value: 0 for ending in Ending}))
    finished: int = 0
    finished_work: float = 0.0
    output_tokens: int = 0
    counted: int = 0
    withdrawn: int = 0

    def arrived(self, job: Job) -> None:
        """A request came, whatever becomes of it."""
        request = job.request
        flow = self._flow(job)
        flow.arrived += 1
        flow.work += job.cost
        flow.prompt_tokens += request.prompt_tokens * request.sequences
        flow.slo_s = request.deadline_s - request.arrived_s
        if job.groups is not None and not request.guest_of:
            demand = self.demands.setdefault((job.home_name, job.groups), FlowTally())
            demand.arrived += 1
            demand.work += job.cost
            demand.prompt_tokens += request.prompt_tokens * request.sequences

    def rejected(self, job: Job, cause: RejectCause) -> None:
        """It was turned away."""
        if cause.blame is not Blame.CLIENT:
            self._judge(job, False)

    def first_token(self, job: Job, now: float) -> None:
        self._judge(job, now <= job.request.deadline_s)

    def gave_up(self, job: Job, now: float) -> None:
        """It left its lane unplaced."""
        if now > job.request.deadline_s:
            self._judge(job, False)

    def ended_unanswered(self, job: Job, ending: Ending, now: float) -> None:
        """Its lease ended before its first token. One that waits again (`REFUSED`) may still be in time."""
        if ending is Ending.FAILED or (ending is Ending.CANCELLED and now > job.request.deadline_s):
            self._judge(job, False)

    def _judge(self, job: Job, met: bool) -> None:
        """Once: a replica may tell of a first token and die before a byte reaches the gateway; another one begins then
        anew."""
        judged, job.judged = job.judged, True
        if judged or job.request.counted:
            return
        flow = self._flow(job)
        flow.met += met
        flow.missed += not met

    def by_class(self) -> Mapping[str, ClassCounts]:
        """What the ladder looks at."""
        found: dict[str, ClassCounts] = {}
        for (_, name), flow in self.flows.items():
            before = found.get(name, ClassCounts())
            sums = before.met + flow.met, before.missed + flow.missed, before.work + flow.work
            found[name] = ClassCounts(*sums, flow.slo_s)
        return found

    def ended(self, job: Job, ending: Ending) -> None:
        self.endings[ending.value] += 1
        if ending is Ending.FINISHED:
            self.finished += 1
            self.finished_work += job.cost

    def _flow(self, job: Job) -> FlowTally:
        if job.request.guest_of:
            return self.guests
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
    ladder: LadderStats | None,
) -> Snapshot:
    """Everything that others may know of the scheduler, at `now`. `etas`: with wait estimates, which are most of the
    work."""
    by_name: dict[str, list[Lane]] = {}
    for lane in lanes.all:
        by_name.setdefault(lane.name, []).append(lane)
    closed = {lane.groups: fleet.why_none_is_open(lane.groups) for lane in lanes.all}
    guests: dict[str, list[Job]] = {}
    for one in lanes.guests.values():
        guests.setdefault(one.job.home_name, []).append(one.job)
    return Snapshot(
        lanes=tuple(
            _lane(of_name, guests.get(name, []), placing, closed, forecasts, now, etas)
            for name, of_name in by_name.items()
        ),
        replicas=tuple(_replica(replica) for replica in fleet.by_id.values()),
        submitted=tally.submitted,
        placed=placing.placed,
        adopted=tally.adopted,
        promoted=placing.promoted,
        endings=dict(tally.endings),
        rejections=dict(rejections),
        tokens_per_s=placing.rate.per_s,
        output_error=learned_state.outputs.error,
        other_lane=learned_state.other_lane / learned_state.settled if learned_state.settled else None,
        prefix_trust=learned_state.prefixes.trust,
        flows=tuple(
            FlowStats(lane, name, f.arrived, f.work, f.prompt_tokens, f.met, f.missed, f.slo_s)
            for (lane, name), f in tally.flows.items()
        ),
        finished=tally.finished,
        finished_work=tally.finished_work,
        output_tokens=tally.output_tokens,
        counted=tally.counted,
        suspects=suspects.all(now),
        bans=suspects.bans,
        aside=len(lanes.aside),
        withdrawn=tally.withdrawn,
        away=len(lanes.away),
        guests=tally.guests.arrived,
        ladder=ladder,
        demands=tuple(_demands(lanes, tally, placing)),
        groups=tuple(
            GroupStats(name, one.per_s, *dataclasses.astuple(placing.group_rates.tallies.get(name, GroupTally())))
            for name, one in placing.group_rates.by_group.items()
        ),
    )


def _demands(lanes: Lanes, tally: Tally, placing: Placing) -> Iterator[DemandStats]:
    """By lane, and of the promoted: these came to the lanes of their lengths."""
    waiting = {(lane.name, lane.groups): lane for lane in lanes.lanes}
    for (name, groups), flow in tally.demands.items():
        lane = waiting.get((name, groups))
        count, work = (0, 0.0) if lane is None else (lane.count, lane.work)
        running: Mapping[str, int] = placing.group_rates.sequences.get((name, groups), {})
        came = (flow.arrived, flow.work, flow.prompt_tokens)
        yield DemandStats(
            name, groups, count, work, *came, tuple((group, n) for group, n in sorted(running.items()) if n)
        )
    for promoted in lanes.promoted_lanes:
        if promoted.groups is not None and promoted.count:
            yield DemandStats(PROMOTED, promoted.groups, promoted.count, promoted.work, 0, 0.0, 0)


def _replica(r: Replica) -> ReplicaStats:
    maximum = r.capacity
    learned_state = (len(r.leases), r.sequences, r.kv_tokens, r.prefill_tokens, r.prefill_tokens_per_s, r.held_by)
    most = (r.max_sequences, maximum.kv_tokens, r.tpot_s, maximum.group)
    capped_for = r.itl.traffic_class if r.itl is not None and r.max_sequences < maximum.sequences else None
    return ReplicaStats(r.replica_id, r.status.value, *learned_state, *most, capped_for)


def _lane(
    lanes: list[Lane],
    guests: list[Job],
    placing: Placing,
    closed: Mapping[Groups, WaitReason],
    forecasts: Forecasts,
    now: float,
    etas: bool,
) -> LaneStats:
    """The lanes of one name as one: they differ in the groups that may serve their jobs. The estimate is that of the
    first, which all its groups may serve; the seconds of work are the longest. `guests` wait to be let in: they are
    counted, and nobody waits for them."""
    first, rates = lanes[0], placing.group_rates
    waiting = [lane for lane in lanes if lane.count]
    known = [forecasts.etas[lane.key] for lane in lanes if lane.key in forecasts.etas]
    oldest = [job.request.arrived_s for lane in waiting if (job := lane.oldest()) is not None]
    work_s = [lane.work / rate for lane in lanes if (rate := rates.of(lane.groups))]
    return LaneStats(
        name=first.name,
        waiting=sum(lane.count for lane in lanes) + len(guests),
        work_tokens=sum((lane.work for lane in lanes), 0.0) + sum((job.cost for job in guests), 0.0),
        work_s=max(work_s, default=None),
        oldest_wait_s=now - min(oldest) if oldest else 0.0,
        head_waits_for=placing.waits.get(waiting[0].key) or closed[waiting[0].groups] if waiting else None,
        eta_s=None if first.name == PROMOTED or not etas else forecasts.shown(first, now),
        covered=sum(eta.p95.within for eta in known),
        estimated=sum(eta.p95.total for eta in known),
        censored=sum(eta.p95.censored for eta in known),
    )
