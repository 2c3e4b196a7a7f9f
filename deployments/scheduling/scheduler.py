"""The scheduler: the pure core that holds the lanes and leases of one model in one cell.

No clock, no I/O: `now` (seconds, monotonic) and facts come in, decisions go out. The gateway drives it live (`gateway/owner.py`); the simulator and
the tests drive the very same object.

Order: lane (fair shares, fair.py) -> tenant (weighted fair shares) -> earliest deadline first. A request past its lane's `max_wait_s` is promoted;
the bound on its further wait is derived in lanes.py. Invariants, held by property tests: a request is waiting, leased or ended, and only one of
them; a lease ends exactly once; no replica holds more than its budgets, save one request alone on an empty replica; the same inputs give the same
decisions.
"""

from collections import Counter, deque
from dataclasses import replace
from typing import NamedTuple

from deployments.scheduling.admission import Admission, Forecasts
from deployments.scheduling.books import Books
from deployments.scheduling.fleet import Fleet
from deployments.scheduling.holds import Holds
from deployments.scheduling.lane import Lane
from deployments.scheduling.lanes import Lanes
from deployments.scheduling.lease import Lease, Placement, Usage
from deployments.scheduling.limits import TenantLimits
from deployments.scheduling.outliers import Outliers
from deployments.scheduling.pick import pick, uncached_tokens
from deployments.scheduling.policy import Policy
from deployments.scheduling.rate import ServiceRate
from deployments.scheduling.reasons import AdmissionKind, Ending, PickReason, WaitReason
from deployments.scheduling.refusals import Refusals
from deployments.scheduling.replica import Capacity, Replica, ReplicaStatus
from deployments.scheduling.report import take_snapshot
from deployments.scheduling.request import Job, Request
from deployments.scheduling.snapshot import Snapshot
from deployments.scheduling.starting import Starting
from deployments.scheduling.step import Decided, Step
from deployments.scheduling.tally import Tally


class Scheduler:
    """See the module's docstring. Every method that takes `now` expects it never to run backwards."""

    def __init__(self, policy: Policy) -> None:
        self.lanes = Lanes(policy)
        self.fleet = Fleet()
        self.holds = Holds(self.fleet)
        self.books = Books()
        self.rate = ServiceRate()
        self.tally = Tally()
        self.starting = Starting(self.fleet)
        self.forecasts = Forecasts(self.lanes, self.rate, self.starting)
        self.limits = TenantLimits()
        self.limits.configure(policy.tenants, 0.0)
        self.refusals = Refusals(self.lanes, self.limits, self.starting, self.forecasts, self.tally)
        self.leases: dict[int, tuple[Lease, Job]] = {}
        self.submitted = 0
        self.placed = 0
        self.adopted = 0
        self.promoted = 0
        self.endings: Counter[str] = Counter({ending.value: 0 for ending in Ending})
        self.waits: dict[str, WaitReason] = {}
        """What the heads that were looked at wait for; the others wait for any replica to open."""
        self._outliers = Outliers(self.fleet)
        self._decided = Decided()
        self._to_learn: deque[_Placed] = deque()
        self._leased_ids: set[str] = set()
        self._next_lease = 0

    def configure(self, policy: Policy, now: float) -> None:
        """Changes the policy; what waits keeps waiting, in the lane that is now its own."""
        for lane in self.lanes.all:
            self.holds.end(lane)
        self.lanes.configure(policy)
        self.forecasts.reload(now)
        self.limits.configure(policy.tenants, now)

    def submit(self, request: Request, now: float, admitted: bool = False) -> Admission:
        """Takes a request into its lane, or says why not and when to come back. `step` places it.

        `admitted`: another owner, which is gone, had taken it in: no limit or cap turns it away now, but for a replica it does not wait in vain.
        """
        self.submitted += 1
        job = Job(request, self.lanes.next_sequence())
        self.books.book(job, self.lanes.policy)
        self.lanes.find_home(job)
        self.tally.arrived(job)
        rejection = self.refusals.at_the_door(job, request.request_id in self._leased_ids, now, admitted)
        if rejection is not None:
            return rejection
        self.limits.begin(job)
        if not self.lanes.jobs and isinstance(self.fleet.fitting(job), list):
            self.lanes.enter(job)
            return Admission(AdmissionKind.ADMIT, job.home_name)
        eta = self.forecasts.promise(job, now)
        self.lanes.enter(job)
        return Admission(AdmissionKind.QUEUE, job.home_name, eta_s=eta)

    def adopt(self, told: Lease, started: bool, now: float) -> Lease | None:
        """Books a lease of an owner that is gone, as the replica tells of it. `started`: its prompt is prefilled. None for an unknown replica."""
        replica = self.fleet.by_id.get(told.replica_id)
        if replica is None:
            return None
        policy = self.lanes.policy
        job = Job(told.request, self.lanes.next_sequence())
        job.attempt = told.attempt - told.request.attempts
        job.prefill_tokens, job.kv_tokens, job.output_tokens = told.prefill_tokens, told.kv_tokens, told.output_tokens
        job.cost = job.prefill_tokens + policy.decode_weight * job.output_tokens * told.sequences
        self.lanes.find_home(job)  # `told.home` is an index into the lanes of its owner
        self.limits.adopt(job)
        self.adopted += 1
        self._next_lease += 1
        lease = replace(told, lease_id=self._next_lease, home=job.home)
        self._bind(lease, job, replica, now)
        if started:
            replica.first_token(lease)  # whether that was in time, its first owner counted
            self.fleet.touch(replica)
        return lease

    def cancel(self, request_id: str, now: float) -> bool:
        """Takes a waiting request out of its lane. False when it does not wait (never did, was placed, or was given up)."""
        job = self.lanes.jobs.get(request_id)
        if job is None:
            return False
        self.forecasts.gave_up(job, now)
        self.tally.gave_up(job, now)
        self.lanes.leave(job)
        self.limits.end(job)
        return True

    def first_token(self, lease: Lease, now: float) -> None:
        """The replica sent the first byte of the answer: its prompt is prefilled. Ignored for a lease that ended."""
        if lease.lease_id in self.leases:
            replica = self.fleet.by_id[lease.replica_id]
            if replica.first_token(lease):
                self.fleet.touch(replica)
                self.tally.first_token(self.leases[lease.lease_id][1], now)

    def release(self, lease: Lease, ending: Ending, usage: Usage | None, now: float) -> bool:
        """Ends a lease. False when it had ended before, and then nothing changes. `REFUSED` puts its request back at its lane's head."""
        held = self.leases.pop(lease.lease_id, None)
        if held is None:
            return False
        job = held[1]
        self._leased_ids.discard(lease.request.request_id)
        replica = self.fleet.by_id[lease.replica_id]
        if replica.first_token(lease):
            self.tally.ended_unanswered(job, ending, now)
        replica.unbind(lease)
        self.fleet.touch(replica)
        self.endings[ending.value] += 1
        if ending is Ending.REFUSED:
            self.lanes.enter(job)
            self.starting.doubt = True
        else:
            self.limits.end(job)
        if ending is Ending.FINISHED:
            self.rate.finished.add(job.cost, now)
            self.tally.finished += 1
            self.tally.finished_work += job.cost
        if not self.leases:
            self.rate.finished.run(False, now)
        if usage is not None and ending is Ending.FINISHED:
            self.learn(lease, usage, now)
        return True

    def learn(self, lease: Lease, usage: Usage, now: float) -> None:
        """The engine's account of a finished request; it may come after its lease has ended, and teaches estimates, never books."""
        replica = self.fleet.by_id.get(lease.replica_id)
        if replica is not None and usage.sequences:
            replica.learn(usage)
        if usage.sequences:
            self.books.settle(lease, usage, self.lanes.policy)
            self.tally.counted += 1
            self.tally.output_tokens += usage.output_tokens
            booked = (lease.request.prompt_tokens + lease.output_tokens) * lease.sequences
            self.limits.settle(lease.request.tenant, booked, usage.prompt_tokens + usage.output_tokens)

    def replica_up(self, replica_id: str, capacity: Capacity, now: float) -> None:
        """A replica is ready; also brings a suspect one back, but lifts no cordon. The capacity of a known replica is replaced, its leases stand."""
        if self.lanes.jobs and not self.fleet.any_ready:
            self.rate.forget_idle()
        self.fleet.up(replica_id, capacity)

    def replica_suspect(self, replica_id: str, now: float) -> None:
        """A replica is silent: nothing new is placed there until `replica_up`. An unknown one is no error."""
        self.fleet.set_status(replica_id, ReplicaStatus.SUSPECT)

    def replica_draining(self, replica_id: str, now: float) -> None:
        """A replica takes no new work but finishes what it has. An unknown one is no error."""
        self.fleet.set_status(replica_id, ReplicaStatus.DRAINING)
        self.starting.doubt = True

    def replica_cordoned(self, replica_id: str, now: float) -> None:
        """An operator keeps new work off a replica, whatever its feed says; its leases stand. Also one that is not known yet."""
        self.fleet.cordon(replica_id, True)
        self.starting.doubt = True

    def replica_uncordoned(self, replica_id: str, now: float) -> None:
        """...and does no more. One that was not cordoned is no error."""
        self.fleet.cordon(replica_id, False)

    def expect_replica(self, ready_at_s: float | None, now: float) -> None:
        """The next replica should be ready at `ready_at_s`; None: nobody knows of one that starts. Counts only while there is no other."""
        self.starting.expect(ready_at_s)

    def replica_lost(self, replica_id: str, now: float) -> tuple[Lease, ...]:
        """A replica is gone: its leases end as failed and are returned, for the shell to tell their clients."""
        replica = self.fleet.by_id.get(replica_id)
        if replica is None:
            return ()
        lost = tuple(replica.leases.values())
        for lease in lost:
            self.release(lease, Ending.FAILED, None, now)
        self.fleet.remove(replica)
        self.starting.doubt = True
        self.books.prefixes.forget(replica_id)
        return lost

    def step(self, now: float) -> Step:
        """Gives up waits that ran out or will, promotes, then places jobs by the lanes' shares until no lane's head fits.

        What it decided is handed over whole, by the next step where this one raises (`step.Decided`).
        """
        self._end_waits(now)
        self.lanes.promote(now)
        self._outliers.judge(now)
        if self.holds.by_lane:
            self.holds.end_stale()
        if self.waits:
            self.waits.clear()
        if self.lanes.jobs and (self.holds.by_lane or self.fleet.any_open):
            self._place_all(now)
            self._learn_from_placements(now)
            self.forecasts.stepped(now)
        self.rate.placed.run(bool(self.lanes.jobs) and self.fleet.any_ready, now)
        return self._decided.hand_over()

    def next_wakeup(self) -> float | None:
        """When `step` must run though nothing else happens: the next promotion or end of a wait. None: never."""
        return self.lanes.next_wakeup()

    def snapshot(self, now: float, etas: bool = True) -> Snapshot:
        """The books at this moment; without `etas` in a quarter of the time."""
        return take_snapshot(self, now, etas)

    def _end_waits(self, now: float) -> None:
        if self.starting.doubt:
            self.refusals.turn_away(self._decided.turned_away, now)
        for gone in self.lanes.expire(now):
            self._decided.expired.append(gone.request)
            self.limits.end(gone)
            self.tally.gave_up(gone, now)
            self.forecasts.gave_up(gone, now)

    def _place_all(self, now: float) -> None:
        passed_over: list[Lane] = []
        while (self.holds.by_lane or self.fleet.any_open) and (lane := self.lanes.due(passed_over)) is not None:
            if (job := lane.head(now)) is None:
                raise AssertionError(f"lane {lane.name} counts {lane.count} jobs and has no head")
            picked = self._find(lane, job)
            if isinstance(picked, WaitReason):
                self.waits[lane.name] = picked
                self.holds.begin(lane, job)
                passed_over.append(lane)
                continue
            self._place(lane, job, *picked, passed_over, now)
            if picked[1] is PickReason.HELD:
                passed_over.clear()  # what the hold kept from them is free again: whoever is due looks anew

    def _find(self, lane: Lane, job: Job) -> tuple[Replica, PickReason] | WaitReason:
        held = self.holds.of(lane, job)
        if held is not None:
            waits = held.wait_reason(job)
            if waits is None:
                return held, PickReason.HELD
        fitting = self.fleet.fitting(job)
        if isinstance(fitting, WaitReason):
            return fitting
        prefixes = self.books.prefixes
        warm_ids = prefixes.longest(job.request.prefix)[1] if job.request.prefix else ()
        warm = [r for name in warm_ids if (r := self.fleet.by_id.get(name)) is not None and r.open and r.wait_reason(job) is None]
        return pick(job, fitting, warm, prefixes, self.lanes.policy.stickiness_ms)

    def _place(self, lane: Lane, job: Job, replica: Replica, reason: PickReason, passed_over: list[Lane], now: float) -> None:
        """First all that is computed, then the books and what is handed over, then what is learned from it."""
        request, promoted = job.request, job.promoted_s is not None
        prefill = uncached_tokens(job, replica, self.books.prefixes) if request.prefix else job.prefill_tokens
        attempt, lease_id = request.attempts + job.attempt + 1, self._next_lease + 1
        lease = Lease(lease_id, request, replica.replica_id, now, attempt, prefill, job.kv_tokens, job.output_tokens, job.home)
        told = None if job.promise is None else (job.promise.p50_s, job.promise.p95_s)
        placement = Placement(request, lease, reason, lane.name, promoted, now - request.arrived_s, told)
        learned = _Placed(job, lane.name, job.late)
        job.attempt += 1
        self._next_lease = lease_id
        self.lanes.serve(lane, job, passed_over)
        self.holds.end(lane)
        self._bind(lease, job, replica, now)
        self._decided.placements.append(placement)
        self.placed += 1
        self.promoted += promoted and job.attempt == 1
        self._to_learn.append(learned)
        if request.prefix:
            self.books.prefixes.add(request.prefix, replica.replica_id, replica.capacity.kv_tokens // max(1, request.chunk_tokens))

    def _learn_from_placements(self, now: float) -> None:
        while self._to_learn:
            placed = self._to_learn.popleft()
            self.rate.placed.add(placed.job.cost, now)
            self.forecasts.placed(placed.job, placed.lane, placed.was_late, now)

    def _bind(self, lease: Lease, job: Job, replica: Replica, now: float) -> None:
        replica.bind(lease)
        self.fleet.touch(replica)
        self.leases[lease.lease_id] = (lease, job)
        self._leased_ids.add(lease.request.request_id)
        self.rate.finished.run(True, now)


class _Placed(NamedTuple):
    """A placement of which rates and forecasts do not know yet: of which job, from which lane, and whether it came too late for its deadline."""

    job: Job
    lane: str
    was_late: bool
