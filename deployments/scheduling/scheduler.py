"""The scheduler: the pure core that holds the lanes and leases of one model in one cell.

No clock, no I/O: `now` (seconds, monotonic) and facts come in, decisions go out. `ownership/lane_owner.py` drives it
live; the simulator and the tests drive the very same object.

Order: lane (fair shares, lane.py) -> tenant (weighted fair shares) -> shortest work first (lane.py). A request past its
lane's `max_wait_s` is promoted; the bound on its further wait is derived in lanes.py. Invariants, held by property
tests: a request is waiting, leased or ended, and only one of them; a lease ends exactly once; no replica holds more
than its budgets, save one request alone on an empty replica; the same inputs give the same decisions.
"""

from collections.abc import Collection
from dataclasses import replace
from itertools import chain

from cluster.spec import DEFAULT_GROUP
from deployments.ladder_stats import LadderOrder
from deployments.protocol import Usage
from deployments.scheduling.admission import REJECTION_RULES, AdmissionControl, Facts, tenant_limits
from deployments.scheduling.answers import Admission, Step, TurnedAway
from deployments.scheduling.fleet import Fleet, ItlCaps, Outliers
from deployments.scheduling.forecasts import Forecasts, Outage
from deployments.scheduling.group_rates import GroupRates
from deployments.scheduling.guests import GuestRoom
from deployments.scheduling.ladder import Ladder, LadderStep
from deployments.scheduling.lanes import Lanes, earlier
from deployments.scheduling.learned_state import LearnedState, ServiceRate
from deployments.scheduling.outlook import Starting
from deployments.scheduling.pick import pick_named
from deployments.scheduling.placing import Holds, Placing
from deployments.scheduling.policy import SchedulingPolicy, TenantLimits, TenantUse
from deployments.scheduling.reasons import AdmissionKind, Ending, RejectCause, Rung, WaitReason
from deployments.scheduling.replica import Capacity, ReplicaStatus
from deployments.scheduling.request import Job, Lease, Request, Suspicion, lease_away
from deployments.scheduling.snapshot import Snapshot
from deployments.scheduling.suspects import Quarantine, Suspects
from deployments.scheduling.tally import Tally, take_snapshot
from deployments.scheduling.waiting import WaitingView

_FULL = (RejectCause.LANE_FULL, RejectCause.MODEL_FULL, RejectCause.STARTING, RejectCause.PATIENCE)
_NOTHING = Step((), ())
_REMEMBERED = 512
"""So many requests that went unanswered are remembered: more than a gateway has waiting, or a replica running, but in a
crowd. What is submitted again beyond that counts as new."""


class Scheduler:
    """Of one model in one cell; see the module's docstring. Its shells are the lane owner, live
    (`ownership/lane_owner.py`), and the simulator's cell. They give the time (`now`, in seconds of one clock that never
    runs backwards) and facts, and act on decisions; a shell decides nothing itself. No call blocks or raises for what a
    client or a replica did: what is unknown, or has ended, is ignored. After each call that changes something `step` is
    due: it alone places.
    """

    def __init__(self, policy: SchedulingPolicy) -> None:
        self.lanes = Lanes(policy)
        pick = pick_named(policy.pick)
        self.fleet = Fleet(pick)
        self.holds = Holds(self.fleet)
        self.learned_state = LearnedState()
        self.rate = ServiceRate()
        self.group_rates = GroupRates(self.rate)
        self.tally = Tally()
        self.starting = Starting(self.fleet)
        self.outage = Outage(self.fleet)
        self.forecasts = Forecasts(self.lanes, self.group_rates, self.starting, self.outage)
        self.limits = TenantLimits()
        self.limits.configure(policy.tenants, 0.0)
        self.suspects = Suspects()
        self._unanswered: dict[str, bool] = {}
        """Requests whose wait or lease ended without an answer, and that may be submitted again: whether each has been
        judged. The oldest first."""
        self._expired: list[Request] = []
        self._turned_away: list[TurnedAway] = []
        parts = (self.lanes, self.fleet, self.holds, self.learned_state, self.group_rates, self.forecasts)
        self.placing = Placing(*parts, pick)
        self.ladder = Ladder()
        self.ladder.configure(policy.ladder, policy.allowed)
        facts = Facts(
            self.lanes,
            self.limits,
            self.placing,
            self.group_rates,
            self.starting,
            self.suspects,
            self.forecasts,
            self.ladder,
        )
        self.admission = AdmissionControl(facts, self.tally)
        self.quarantine = Quarantine(self.suspects, self.lanes, self.fleet, self.placing, self.forecasts)
        self.guests = GuestRoom(self.lanes, self.fleet)
        self.waiting = WaitingView(self.lanes, self.forecasts, self.placing, self.learned_state, self.suspects)
        self.leases = self.placing.leases
        self._outliers = Outliers(self.fleet)
        self._itl_caps = ItlCaps(self.fleet, policy.itl)

    def configure(self, policy: SchedulingPolicy, now: float) -> None:
        """Changes the settings. What waits keeps waiting, in the lane that is now its own."""
        for lane in self.lanes.all:
            self.holds.end(lane)
        if policy.pick != self.lanes.policy.pick:
            self.placing.pick = pick_named(policy.pick)
            self.fleet.order_by(self.placing.pick)
        self.lanes.configure(policy)
        self._itl_caps.configure(policy.itl)
        self.ladder.configure(policy.ladder, policy.allowed)
        self.forecasts.reload()
        self.admission.reload()
        self.limits.configure(policy.tenants, now)

    def submit(self, request: Request, now: float, admitted: bool = False) -> Admission:
        """Takes a request into its lane, or rejects it. `admitted`: an owner had taken it in before, so no limit or cap
        rejects it now; if that was this one, it is charged and counted no second time. One that is `cached` enters no
        lane."""
        if request.cached:
            return self._count(request, now)
        self.tally.submitted += 1
        job = Job(request, self.lanes.next_sequence())
        self.learned_state.book(job, self.lanes.policy)
        self.lanes.find_home(job)
        judged = self._unanswered.get(request.request_id)
        again = admitted and judged is not None
        if again:
            job.judged = bool(judged)
        elif not request.counted:
            self.tally.arrived(job)
        clamp = None if admitted else self._clamp(job)
        rejection = self.admission.reject(job, admitted, REJECTION_RULES, now)
        if rejection is not None:
            if self.ladder.steps and rejection.cause in _FULL:
                self.ladder.came(request.traffic_class, True)
            return rejection
        admission = self._take_in(job, again, now)
        if clamp is None:
            return admission
        self.ladder.touch(clamp)
        return replace(admission, clamp_tokens=clamp.max_tokens)

    def _take_in(self, job: Job, again: bool, now: float) -> Admission:
        request = job.request
        self._unanswered.pop(request.request_id, None)
        if again:
            self.limits.adopt(job)
        else:
            self.limits.begin(job)
        if request.guest_of and not self.suspects.of(request.key, now):
            return Admission(self.guests.take(job, now), job.home_name)
        if self.quarantine.takes(job, now):
            return Admission(AdmissionKind.QUEUE, job.home_name)
        if self.placing.has_room_for(job):
            self.lanes.enter(job)
            if self.ladder.steps:
                self.ladder.came(request.traffic_class, False)
            return Admission(AdmissionKind.ADMIT, job.home_name)
        eta = self.forecasts.wait_estimate(job, now)
        if self.ladder.steps:
            self.ladder.came(request.traffic_class, now + eta[0] > request.deadline_s)
        self.lanes.enter(job)
        return Admission(AdmissionKind.QUEUE, job.home_name, eta_s=eta, waits_for=self.placing.last_wait)

    def order_ladder(self, order: LadderOrder, now: float) -> None:
        """An operator says how far the ladder goes, or may go, or leaves it to itself."""
        self.ladder.order(order, now)

    def adopt(self, reported: Lease, started: bool, now: float) -> Lease | None:
        """Adopts a lease of an earlier owner, as its replica reports it. `started`: its prompt is prefilled. None for
        an unknown replica."""
        replica = self.fleet.by_id.get(reported.replica_id)
        if replica is None:
            return None
        job = Job(reported.request, self.lanes.next_sequence())
        self.learned_state.book_as(job, reported, self.lanes.policy)
        self.lanes.find_home(job)  # `reported.home` is an index into the lanes of its owner
        self.limits.adopt(job)
        self.tally.adopted += 1
        lease = replace(reported, lease_id=self.placing.next_id(), home=job.home)
        self.placing.bind(lease, job, replica, now)
        if started:
            replica.first_token(lease)  # whether that was in time, its first owner counted
            self.fleet.touch(replica)
        return lease

    def cancel(self, request_id: str, now: float) -> bool:
        """Takes a waiting request out of its lane, or ends one that was withdrawn. False for any other."""
        job = self.lanes.waiting(request_id)
        if job is not None:
            self.forecasts.gave_up(job, now)
            self.lanes.take_out(job)
        elif (job := self.lanes.away.pop(request_id, None)) is None:
            return False
        self.tally.gave_up(job, now)
        self._went_unanswered(job)
        return True

    def withdraw(self, request_id: str, now: float) -> Lease | None:
        """Takes a waiting request out of its lane: a peer cell gets it, as its next attempt. It arrived here, so it
        stays this cell's demand: until `cancel` or `put_back` it goes on counting against its tenant's limits, and it
        meets or misses its SLO by the first token that its client gets from the peer. Its wait estimate teaches
        nothing. Returns the lease by which the peer's account of it can be learned (`learn`); no replica here is booked
        with it; of one that is away (`begin_away`), that of another attempt. None for any other."""
        job = self.lanes.waiting(request_id)
        if job is not None:
            self.lanes.take_out(job)
            self.forecasts.withdraw(job)
            self.tally.withdrawn += 1
            self.lanes.away[request_id] = job
        elif (job := self.lanes.away.get(request_id)) is None:
            return None
        job.request = replace(job.request, attempts=job.request.attempts + 1)
        return lease_away(job.request, now, job.output_tokens, job.home)

    def begin_away(self, request: Request, now: float, admitted: bool, charged: bool) -> Admission | None:
        """A request that enters no lane here goes to a peer cell. It is no demand of this cell, and counts against its
        tenant's limits until `cancel`. Returns the rejection of one that would break them (`admitted`: none would;
        `charged`: it waited here before)."""
        job = Job(replace(request, counted=True), self.lanes.next_sequence())
        self.learned_state.book(job, self.lanes.policy)
        self.lanes.find_home(job)
        rejection = self.admission.reject(job, admitted, (tenant_limits,), now)
        if rejection is None:
            if charged or (admitted and self._unanswered.pop(request.request_id, None) is not None):
                self.limits.adopt(job)
            else:
                self.limits.begin(job)
            self.lanes.away[request.request_id] = job
        return rejection

    def put_back(self, request_id: str, now: float) -> bool:
        """A withdrawn request waits again, at its lane's head. False when it was not withdrawn."""
        job = self.lanes.away.pop(request_id, None)
        if job is not None and not self.quarantine.takes(job, now):
            self.lanes.enter_again(job, first=True)
        return job is not None

    def first_token_away(self, request_id: str, now: float) -> None:
        """The client of a withdrawn request has its first token."""
        job = self.lanes.away.get(request_id)
        if job is not None:
            self.tally.first_token(job, now)

    def died_away(self, request_id: str, now: float) -> None:
        """A replica of the peer cell died while it ran a withdrawn request, which is a suspect here, too."""
        job = self.lanes.away.get(request_id)
        if job is not None:
            self.suspects.died_elsewhere(job.request.key, job.judged, now)

    def first_token(self, lease: Lease, now: float) -> None:
        """The lease's prompt is prefilled."""
        if lease.lease_id in self.leases:
            replica = self.fleet.by_id[lease.replica_id]
            self.outage.sign(replica.capacity.group, now)
            if replica.first_token(lease):
                self.fleet.touch(replica)
                self.tally.first_token(self.leases[lease.lease_id][1], now)
                self.suspects.came_further(lease.request.key, now)

    def died(self, lease: Lease, now: float) -> None:
        """The replica, or its engine, died while the lease ran, which stands until `release`. Its request is a suspect,
        unless the replica drains: it was to go."""
        held = self.leases.get(lease.lease_id)
        if held is not None and self.fleet.by_id[lease.replica_id].reported is not ReplicaStatus.DRAINING:
            self.suspects.died(self.quarantine.run_of(*held), self.quarantine.tried_on(lease.replica_id), now)

    def recall(self, reported: Suspicion, now: float) -> None:
        """What an earlier owner knew of a query of death."""
        self.suspects.recall(reported, now)

    def used_elsewhere(self, uses: tuple[TenantUse, ...], now: float) -> None:
        """What tenants have taken of their limits in all other cells together since the last call, and how many
        requests they have there at once now; who is not named has none."""
        self.limits.used_elsewhere(uses, now)

    def release(self, lease: Lease, ending: Ending, usage: Usage | None, now: float) -> bool:
        """Ends a lease. False when it had ended before. `REFUSED` puts its request back at its lane's head."""
        held = self.leases.get(lease.lease_id)
        if held is None:
            return False
        replica = self.fleet.by_id[lease.replica_id]
        if ending in (Ending.FAILED, Ending.CANCELLED) and replica.reported is not ReplicaStatus.DRAINING:
            self.suspects.failed(self.quarantine.run_of(*held), now)
        job = self.placing.unbind(lease)
        if replica.first_token(lease):
            self.tally.ended_unanswered(job, ending, now)
        replica.unbind(lease)
        self.fleet.touch(replica)
        self.tally.ended(job, ending)
        if ending is Ending.REFUSED:
            self.starting.doubt = True
            if not self.quarantine.takes(job, now):
                self.lanes.enter_again(job)
        elif ending is Ending.FAILED:
            self._went_unanswered(job)
        else:
            self.limits.end(job)
        if ending is Ending.FINISHED:
            self.outage.sign(replica.capacity.group, now)
            self.suspects.clear(lease.request.key)
            self.rate.finished.add(job.cost, now)
        if not self.leases:
            self.rate.finished.run(False, now)
        if job.groups is not None:
            self.group_rates.ended(replica.capacity.group, job, ending is Ending.FINISHED, now)
        if usage is not None and ending is Ending.FINISHED:
            self.learn(lease, usage, now)
        return True

    def learn(self, lease: Lease, usage: Usage, now: float) -> None:
        """The engine's account of a finished request, before or after its lease ends. Changes estimates, never
        bookings."""
        replica = self.fleet.by_id.get(lease.replica_id)
        if replica is not None and usage.sequences:
            replica.learn(usage)
            if replica.itl is not None:
                replica.itl.ended(lease, usage, now)
        if usage.sequences and not lease.request.clamped:  # a clamp teaches nothing of answers
            self.learned_state.settle(lease, usage, self.lanes.policy)
            self.tally.counted += 1
            self.tally.output_tokens += usage.output_tokens
        if usage.sequences:
            if replica is not None and self.lanes.policy.contexts:
                self.group_rates.reported(replica.capacity.group, usage.output_tokens)
            if not lease.request.guest_of:
                self.limits.settle(lease.request.tenant, lease.tokens, usage.prompt_tokens + usage.output_tokens)

    def replica_up(self, replica_id: str, capacity: Capacity, now: float) -> None:
        """It is ready (again), though perhaps cordoned. The capacity of a known one is replaced, its leases stand."""
        if self.lanes.jobs and not self.fleet.any_ready:
            self.rate.forget_idle()
        if self.lanes.policy.contexts and not self.fleet.any_ready_of((capacity.group,)):
            self.group_rates.forget_idle(capacity.group)
        self._itl_caps.attend(self.fleet.up(replica_id, capacity))
        self.suspects.back(replica_id, now)
        since_s = self.outage.up(capacity.group, now)
        if since_s is not None:
            self.forecasts.recovered(since_s, capacity.group)

    def replica_unresponsive(self, replica_id: str, now: float) -> None:
        """It is unresponsive: nothing new goes there until `replica_up`."""
        self.fleet.set_status(replica_id, ReplicaStatus.UNRESPONSIVE)
        replica = self.fleet.by_id.get(replica_id)
        if replica is not None:
            self.outage.down(replica.capacity.group)

    def replica_draining(self, replica_id: str, now: float) -> None:
        """It takes no new work but finishes what it has."""
        self.fleet.set_status(replica_id, ReplicaStatus.DRAINING)
        self.starting.doubt = True

    def replica_cordoned(self, replica_id: str, now: float) -> None:
        """An operator keeps new work off it, whatever else is said of it; also one that is not known yet."""
        self.fleet.cordon(replica_id, True)
        self.starting.doubt = True

    def replica_uncordoned(self, replica_id: str, now: float) -> None:
        """...and does no more."""
        self.fleet.cordon(replica_id, False)

    def expect_replica(self, ready_at_s: float | None, now: float, group: str = DEFAULT_GROUP) -> None:
        """The group's next replica should be ready then; None: nobody knows of one that starts. Counts while there is
        no other."""
        self.starting.expect(ready_at_s, group)

    def replica_lost(self, replica_id: str, now: float) -> tuple[Lease, ...]:
        """It is gone: its leases end as failed, and are returned."""
        replica = self.fleet.by_id.get(replica_id)
        if replica is None:
            return ()
        lost = tuple(replica.leases.values())
        for lease in lost:
            self.died(lease, now)
        for lease in lost:
            self.release(lease, Ending.FAILED, None, now)
        self.suspects.gone(replica_id, now)
        self.fleet.remove(replica)
        if replica.reported is not ReplicaStatus.DRAINING:
            self.outage.down(replica.capacity.group)
        self.starting.doubt = True
        self.learned_state.prefixes.forget(replica_id)
        return lost

    def step(self, now: float) -> Step:
        """Gives up waits that ran out or will, promotes, then places jobs by the lanes' shares until no lane's head
        fits.

        A decision is recorded in the same moment as it changes the bookings, before anything is counted or learned from
        it. So whatever raises later in the step, no lease and no request is lost: the next step hands them over.
        """
        if self.lanes.any_wait or self.starting.doubt:
            self._end_waits(now)
        self.suspects.forget(now)
        if self.quarantine.has_work:
            for job, forgotten_in_s in self.quarantine.step(now):
                self.admission.reject_banned(job, forgotten_in_s, self._turned_away, now)
        self.lanes.promote(now)
        self.forecasts.promoted(now)
        if self.ladder.steps and now >= self.ladder.due_s:
            self.ladder.turn(self.tally.by_class(), self.fleet.ready, now)
        self._outliers.judge(now)
        self._itl_caps.judge(now)
        if self.holds.by_lane:
            self.holds.end_stale()
        self.placing.step(now)
        while self.lanes.guests and self.guests.lets_in(now):
            self.placing.step(now)
        self.rate.placed.run(bool(self.lanes.jobs) and self.fleet.any_ready, now)
        if self.lanes.policy.contexts:
            self.group_rates.tick(self.lanes, self.fleet, now)
        return self._hand_over()

    def _hand_over(self) -> Step:
        """What is recorded and not yet handed to the shell, once."""
        placed, expired, turned_away = self.placing.placements, self._expired, self._turned_away
        suspicions = self.suspects.news()
        if not (placed or expired or turned_away or suspicions):
            return _NOTHING
        self.placing.placements, self._expired, self._turned_away = [], [], []
        return Step(tuple(placed), tuple(expired), tuple(turned_away), suspicions)

    def next_wakeup(self) -> float | None:
        """When `step` is due though nothing else happens; None: never."""
        if not self.lanes.any_wait:
            return self.ladder.next_wakeup()
        return earlier(earlier(self.lanes.next_wakeup(), self.quarantine.next_wakeup()), self.ladder.next_wakeup())

    def snapshot(self, now: float, etas: bool = True) -> Snapshot:
        """The state at this moment; without `etas` in a quarter of the time."""
        parts = (self.lanes, self.fleet, self.placing, self.forecasts, self.learned_state, self.tally, self.suspects)
        ladder = self.ladder.stats if self.ladder.steps else None
        return take_snapshot(*parts, self.admission.rejections, now, etas, ladder)

    def head_waits(self) -> tuple[tuple[str, WaitReason], ...]:
        """What the head of each lane in which something waits waits for, by the lane's name."""
        return self.placing.head_waits()

    def suspicions(self, now: float) -> tuple[Suspicion, ...]:
        """The bodies that are suspects or banned (`suspects.py`)."""
        return self.suspects.all(now)

    def tenant_use(self) -> tuple[TenantUse, ...]:
        """What tenants with limits have taken here, and how many requests they have at once."""
        return self.limits.used()

    def is_draining(self, replica_id: str) -> bool:
        """Whether a known replica drains."""
        return self.fleet.is_draining(replica_id)

    @property
    def replica_ids(self) -> Collection[str]:
        return self.fleet.by_id.keys()

    @property
    def cordoned(self) -> Collection[str]:
        """The ids that operators keep new work off, of replicas known and not."""
        return self.fleet.cordoned

    @property
    def submitted(self) -> int:
        """Requests so far."""
        return self.tally.submitted

    @property
    def is_idle(self) -> bool:
        """Whether nothing waits in a lane and no lease stands."""
        return not self.lanes.jobs and not self.lanes.guests and not self.leases

    def _went_unanswered(self, job: Job) -> None:
        self.limits.end(job)
        self._unanswered[job.request.request_id] = job.judged
        if len(self._unanswered) > _REMEMBERED:
            del self._unanswered[next(iter(self._unanswered))]

    def _count(self, request: Request, now: float) -> Admission:
        """A request without work takes one of its tenant's requests a minute, or is rejected."""
        job = Job(request, self.lanes.next_sequence())
        self.lanes.find_home(job)
        rejection = self.admission.reject(job, False, (tenant_limits,), now)
        if rejection is not None:
            return rejection
        self.limits.begin(job)
        self.limits.end(job)
        return Admission(AdmissionKind.ADMIT, job.home_name)

    def _clamp(self, job: Job) -> LadderStep | None:
        """A step in force lowers the `max_tokens` of a new job, which is booked anew. None: none does."""
        request = job.request
        step = self.ladder.acting(Rung.CLAMP, request.traffic_class) if Rung.CLAMP in request.rungs else None
        if step is None or (request.max_tokens is not None and request.max_tokens <= step.max_tokens):
            return None
        job.request = replace(request, max_tokens=step.max_tokens, clamped=True)
        self.learned_state.book(job, self.lanes.policy)
        self.lanes.find_home(job)
        return step

    def _end_waits(self, now: float) -> None:
        if self.starting.doubt:
            self.guests.disperse()
            self.admission.reject_waiting(self._turned_away, now)
        if not (self.lanes.is_expired(now) or self.lanes.aside or self.lanes.guests):
            return
        for gone in chain(self.lanes.expire(now), self.quarantine.expire(now), self.guests.expire(now)):
            self._expired.append(gone.request)
            self.limits.end(gone)
            self.tally.gave_up(gone, now)
            self.forecasts.gave_up(gone, now)
