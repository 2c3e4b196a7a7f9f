"""Places what waits: asks the lanes whose turn it is, finds a replica for each head, and records the lease. A part of
the scheduler's step."""

from collections import Counter, deque
from dataclasses import dataclass
from typing import NamedTuple

from deployments.scheduling.answers import Placement
from deployments.scheduling.fleet import Fleet
from deployments.scheduling.forecasts import Forecasts
from deployments.scheduling.group_rates import GroupRates
from deployments.scheduling.lane import Lane
from deployments.scheduling.lanes import PROMOTED, Lanes
from deployments.scheduling.learned_state import LearnedState
from deployments.scheduling.pick import Candidates, Pick, uncached_tokens
from deployments.scheduling.reasons import PickReason, WaitReason
from deployments.scheduling.replica import Replica, ReplicaStatus
from deployments.scheduling.request import Job, Lease
from deployments.scheduling.tenants import SLACK_S


@dataclass(slots=True)
class ReplicaHold:
    """`replica` is kept free for `job`, which waits in `lane`."""

    lane: Lane
    job: Job
    replica: Replica

    @property
    def waits_for(self) -> WaitReason | None:
        """What keeps the job off the replica."""
        return self.replica.wait_reason(self.job)


class Holds:
    """The holds by the key of their lane. A hold keeps a replica free of other work until the head of the promoted
    fits on it, which is what bounds its wait (lanes.py).

    A hold names a job, which is *reserved*: it stays at the head of the promoted until it is placed or gone, so that
    neither another tenant's turn nor a refused request passes the drained room on. A hold ends as its job is placed or
    gone, the lanes are reloaded, or the replica takes no work any more: then the next step looks for another one. Heads
    of other lanes hold nothing: what keeps them off a replica (its sequences, its KV cache, what it has to prefill)
    keeps off those behind them as well, but for the KV cache, and then promotion bounds their wait.
    """

    def __init__(self, fleet: Fleet) -> None:
        self.by_lane: dict[str, ReplicaHold] = {}
        self._fleet = fleet

    def of(self, lane: Lane, job: Job) -> Replica | None:
        """The replica that is held for `job`, the head of `lane`, if it is still good for anything."""
        hold = self.by_lane.get(lane.key)
        if hold is None:
            return None
        if (
            hold.replica.status is not ReplicaStatus.READY
            or not hold.replica.suits(job)
            or self._fleet.by_id.get(hold.replica.replica_id) is not hold.replica
        ):
            self.end(lane)
            return None
        hold.job = job
        return hold.replica

    def begin(self, lane: Lane, job: Job) -> None:
        """The lane's head fits nowhere: if it is the head of the promoted, holds the replica on which it will fit
        soonest."""
        if lane.name != PROMOTED or lane.key in self.by_lane:
            return
        replica = self._soonest(job)
        if replica is not None:
            replica.held_by = lane.name
            self.by_lane[lane.key] = ReplicaHold(lane, job, replica)
            lane.reserved = job
            self._fleet.reserved += 1
            self._fleet.touch(replica)

    def _soonest(self, job: Job) -> Replica | None:
        """The replica on which the job will fit soonest, of the few that are likely to: it is asked again at each step
        until there is one."""
        return min(
            self._fleet.likely(job),
            key=lambda replica: (_missing(replica, job), replica.prefill_tokens, replica.replica_id),
            default=None,
        )

    def end(self, lane: Lane) -> None:
        """The lane needs its hold no longer."""
        hold = self.by_lane.pop(lane.key, None)
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


class Placing:
    """The scheduler gives it its own parts. `leases` holds those that stand, with their jobs, by lease id;
    `placements` those that the shell was not handed yet."""

    def __init__(
        self,
        lanes: Lanes,
        fleet: Fleet,
        holds: Holds,
        learned_state: LearnedState,
        rates: GroupRates,
        forecasts: Forecasts,
        pick: Pick,
    ) -> None:
        self.pick = pick
        self.leases: dict[int, tuple[Lease, Job]] = {}
        self.placed = 0
        self.promoted = 0
        self.waits: dict[str, WaitReason] = {}
        """What the heads that were looked at wait for, by the key of their lane; the others wait for any replica to
        open."""
        self.last_wait: WaitReason | None = None
        """What a request was last seen to wait for."""
        self._lanes = lanes
        self._fleet = fleet
        self._holds = holds
        self._learned = learned_state
        self.rate = rates.whole
        self.group_rates = rates
        self._forecasts = forecasts
        self.placements: list[Placement] = []
        self._to_learn: deque[_Placed] = deque()
        self.runs_of: Counter[str] = Counter()
        """How many leases stand for a key (`Request.key`)."""
        self._leased_ids: dict[str, int] = {}
        self._next_lease = 0

    def runs(self, request_id: str) -> bool:
        """Whether a lease stands for that request."""
        return request_id in self._leased_ids

    def lease_of(self, request_id: str) -> Lease | None:
        lease_id = self._leased_ids.get(request_id)
        return None if lease_id is None else self.leases[lease_id][0]

    def next_id(self) -> int:
        """An id for a lease that was not placed here."""
        self._next_lease += 1
        return self._next_lease

    def bind(self, lease: Lease, job: Job, replica: Replica, now: float) -> None:
        replica.bind(lease)
        self._fleet.touch(replica)
        self.leases[lease.lease_id] = (lease, job)
        self._leased_ids[lease.request.request_id] = lease.lease_id
        self.runs_of[lease.request.key] += 1
        self.rate.finished.run(True, now)
        if job.groups is not None:
            self.group_rates.began(replica.capacity.group, job, now)

    def unbind(self, lease: Lease) -> Job:
        """The job of a lease that ends. The replica's own bookings are left to the caller."""
        job = self.leases.pop(lease.lease_id)[1]
        self._leased_ids.pop(lease.request.request_id, None)
        key = lease.request.key
        self.runs_of[key] -= 1
        if not self.runs_of[key]:
            del self.runs_of[key]
        return job

    def step(self, now: float) -> None:
        """Places jobs by the lanes' shares until no lane's head fits, and learns from that."""
        if self.waits:
            self.waits.clear()
        if self._lanes.jobs and (self._holds.by_lane or self._fleet.any_open):
            self._place_all(now)
            self._learn_from_placements(now)

    def head_waits(self) -> tuple[tuple[str, WaitReason], ...]:
        """What the head of each lane in which something waits waits for. Where a replica is held for it: what keeps it
        off that one."""
        found: dict[str, WaitReason] = {}
        for lane in self._lanes.all:
            if lane.count and lane.name not in found:
                hold = self._holds.by_lane.get(lane.key)
                waits = None if hold is None else hold.waits_for
                found[lane.name] = waits or self.waits.get(lane.key) or self._fleet.why_none_is_open(lane.groups)
        return tuple(found.items())

    def has_room_for(self, job: Job) -> bool:
        """Whether the job can be placed at once, and nothing waits for the room that it takes."""
        if self._lanes.jobs and job.groups is None:
            return False
        fitting = self._fleet.fitting(job)
        if isinstance(fitting, WaitReason):
            self.last_wait = fitting
            return False
        return not self._lanes.wait_for(fitting[0].capacity.group)

    def _place_all(self, now: float) -> None:
        self._lanes.accounts.slack = max(SLACK_S * (self.rate.per_s or 0.0), self._lanes.largest_cost)
        passed_over: list[Lane] = []
        while (self._holds.by_lane or self._fleet.any_open) and (lane := self._lanes.due(passed_over)) is not None:
            if (job := lane.head()) is None:
                raise AssertionError(f"lane {lane.name} counts {lane.count} jobs and has no head")
            picked = self._find(lane, job)
            if isinstance(picked, WaitReason):
                self.waits[lane.key] = self.last_wait = picked
                if picked is not WaitReason.OVER_SHARE:
                    self._holds.begin(lane, job)
                passed_over.append(lane)
                continue
            self._place(lane, job, *picked, passed_over, now)
            if picked[1] is PickReason.HELD:
                passed_over.clear()  # what the hold kept from them is free again: whoever is due looks anew
            else:  # the placement may have moved the clock of the tenants
                passed_over = [one for one in passed_over if self.waits[one.key] is not WaitReason.OVER_SHARE]

    def _find(self, lane: Lane, job: Job) -> tuple[Replica, PickReason] | WaitReason:
        held = self._holds.of(lane, job)
        if held is not None and held.wait_reason(job) is None:
            return held, PickReason.HELD
        fitting = self._fleet.fitting(job)
        wanted = job.groups if isinstance(fitting, WaitReason) or job.groups is None else (fitting[0].capacity.group,)
        if lane.is_over_share(job) and self._lanes.is_contested(wanted):
            return WaitReason.OVER_SHARE
        if isinstance(fitting, WaitReason):
            return fitting
        if job.request.guest_of:  # it holds up nobody where nothing is prefilled (guests.py)
            fitting = [replica for replica in fitting if not replica.prefill_tokens] or fitting
        group = fitting[0].capacity.group
        prefixes = self._learned.prefixes
        warm_ids = prefixes.longest(job.request.prefix)[1] if job.request.prefix else ()
        warm = [
            r
            for name in warm_ids
            if (r := self._fleet.by_id.get(name)) is not None
            and r.open
            and r.capacity.group == group
            and r.suits(job)
            and r.wait_reason(job) is None
        ]
        candidates = Candidates(job, fitting, warm, prefixes, self._lanes.policy.stickiness_ms)
        if job.groups is None:
            return self.pick.choose(candidates)
        unequal = len({replica.kind for replica in fitting}) > 1
        replica, reason = self.pick.choose(candidates._replace(unequal=unequal))
        return replica, reason if group == job.groups[0] else PickReason.NEXT_GROUP

    def _place(
        self, lane: Lane, job: Job, replica: Replica, reason: PickReason, passed_over: list[Lane], now: float
    ) -> None:
        """First computes everything, then changes the bookings and hands the decision over, then learns from it."""
        request, promoted = job.request, job.promoted_s is not None
        prefill = uncached_tokens(job, replica, self._learned.prefixes) if request.prefix else job.prefill_tokens
        attempt, lease_id = request.attempts + job.attempt + 1, self._next_lease + 1
        lease = Lease(
            lease_id, request, replica.replica_id, now, attempt, prefill, job.kv_tokens, job.output_tokens, job.home
        )
        reported = None if job.wait_estimate is None else (job.wait_estimate.p50_s, job.wait_estimate.p95_s)
        placement = Placement(lease, reason, lane.name, promoted, now - request.arrived_s, reported)
        learned = _Placed(job, replica.capacity.group)
        job.attempt += 1
        self._next_lease = lease_id
        self._lanes.serve(lane, job, passed_over)
        self._holds.end(lane)
        self.bind(lease, job, replica, now)
        self.last_wait = replica.wait_reason(job) or self.last_wait  # of one more like it
        self.placements.append(placement)
        self.placed += 1
        self.promoted += promoted and job.attempt == 1
        self._to_learn.append(learned)
        if request.prefix:
            self._learned.prefixes.add(
                request.prefix, replica.replica_id, replica.capacity.kv_tokens // max(1, request.chunk_tokens)
            )

    def _learn_from_placements(self, now: float) -> None:
        while self._to_learn:
            placed = self._to_learn.popleft()
            self.rate.placed.add(placed.job.cost, now)
            if placed.job.groups is not None:
                self.group_rates.placed(placed.group, placed.job.cost, now)
            self._forecasts.placed(placed.job, now)


class _Placed(NamedTuple):
    """A placement of which rates and forecasts do not know yet: of which job, and in which group."""

    job: Job
    group: str


def _missing(replica: Replica, job: Job) -> float:
    """The largest share of a capacity that must come free before the job fits."""
    capacity = replica.capacity
    maximum = capacity.sequences + capacity.ahead if replica.itl is None else replica.max_sequences
    sequences = (replica.sequences + job.request.sequences - maximum) / capacity.sequences
    kv = (replica.kv_tokens + job.kv_tokens - capacity.kv_tokens) / capacity.kv_tokens
    return max(0.0, sequences, kv)
