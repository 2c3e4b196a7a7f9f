"""What `Scheduler.submit` answers, and the rules by which it does: caps in seconds of work, honest waits, computed times to come back."""

from dataclasses import dataclass

from deployments.scheduling.availability import Outage, Starting
from deployments.scheduling.eta import LaneEta, Way
from deployments.scheduling.lane import Lane
from deployments.scheduling.lanes import Lanes
from deployments.scheduling.outlook import Outlooks
from deployments.scheduling.rate import ServiceRate
from deployments.scheduling.reasons import AdmissionKind, RejectCause
from deployments.scheduling.request import Job
from deployments.scheduling.retry import RetryQueue, jittered_s


@dataclass(frozen=True, slots=True)
class Admission:
    """`eta_s`: the wait that is promised to a queued request (p50, p95). `retry_after_s` and `backlog_s` (seconds of work): rejections only."""

    kind: AdmissionKind
    lane: str
    cause: RejectCause | None = None
    eta_s: tuple[float, float] | None = None
    backlog_s: float | None = None
    retry_after_s: float | None = None

    @property
    def accepted(self) -> bool:
        """Whether the request now waits in its lane."""
        return self.kind in (AdmissionKind.ADMIT, AdmissionKind.QUEUE)


class Forecasts:
    """Waits and times to come back, by lane."""

    def __init__(self, lanes: Lanes, rate: ServiceRate, starting: Starting, outage: Outage) -> None:
        self.etas: dict[str, LaneEta] = {}
        self._retries: dict[str, RetryQueue] = {}
        self._lanes = lanes
        self._rate = rate
        self._starting = starting
        self._outage = outage
        self.outlooks = Outlooks(lanes, rate, starting)

    def reload(self, now: float) -> None:
        """The lanes are new. Of those that are no more nothing is kept but the promises they gave: a job knows by whom."""
        names = {lane.name for lane in self._lanes.lanes}
        self.etas = {name: eta for name, eta in self.etas.items() if name in names}
        self._retries = {name: retry for name, retry in self._retries.items() if name in names}
        self.outlooks.reload(names, now)

    def promise(self, job: Job, now: float) -> tuple[float, float]:
        """The wait that a queued job may expect: p50 and p95, in seconds. Called before the job enters its lane."""
        job.eta = self._eta(job)
        self.outlooks.arrived(job, now)
        job.promise = job.eta.promise(self.outlooks.of(job, now))
        return job.promise.p50_s, job.promise.p95_s

    def stepped(self, now: float) -> None:
        """A step begins, or ended: whose latest start passed is known now."""
        self.outlooks.tick(now)
        for lane in self._lanes.lanes:
            if lane.turned_late:
                self._turned_late(lane, now)

    def _turned_late(self, lane: Lane, now: float) -> None:
        for job in lane.turned_late:
            self.outlooks.turned_late(job)
            if job.eta is None or job.promise is None or self._outage.spoils(job.request.arrived_s):
                continue
            if job.attempt == 0 and not job.came_late:
                job.came_late = True
                job.eta.came_late(job.promise, now)
        lane.turned_late.clear()

    def placed(self, job: Job, lane: str, was_late: bool, now: float) -> None:
        """A job was placed from `lane`: what was promised meets what happened."""
        if was_late:
            self.outlooks.placed_late(lane, job.cost, now)
        self.outlooks.promotions.left(job)
        if job.eta is None or job.promise is None or job.attempt != 1:
            return
        eta, wait_s = job.eta, now - job.request.arrived_s
        if self._outage.spoils(job.request.arrived_s):
            eta.spoiled()
            return
        if wait_s > job.promise.outlook.slack_s and not job.came_late:
            job.came_late = True
            eta.came_late(job.promise, now)
        way = Way.TIMELY if not job.came_late else Way.LATE if job.promoted_s is None else Way.PROMOTED
        eta.observe(job.promise, wait_s, way, now)

    def shown(self, home: int, now: float) -> tuple[float, float] | None:
        """What a request like the last one would be told now in the lane of that index; None before any was told anything."""
        if not self._lanes.jobs and self._starting.any_open:
            return 0.0, 0.0
        eta = self.etas.get(self._lanes.policy.lanes[home].name)
        if eta is None or self._rate.per_s is None:
            return None
        told = eta.predict(self.outlooks.of_lane(home, eta.slack_s, 0.0, now))
        return told.p50_s, told.p95_s

    def gave_up(self, job: Job, now: float) -> None:
        """A job leaves its lane unplaced."""
        self.outlooks.promotions.left(job)
        if job.eta is None or job.promise is None or job.attempt:
            return
        if self._outage.spoils(job.request.arrived_s):
            job.eta.spoiled()
        else:
            job.eta.gave_up(job.promise, now - job.request.arrived_s)

    def withdraw(self, job: Job) -> None:
        """A job waits for something else than its lane from now on: what was promised counts no more."""
        self.outlooks.promotions.left(job)
        if job.eta is not None and job.promise is not None and job.attempt == 0:
            job.eta.spoiled()
        job.eta = job.promise = None

    def recovered(self, since_s: float) -> None:
        """An outage is over that began then: nothing counts that was learned in it."""
        for eta in self.etas.values():
            eta.forget(since_s)

    def reject_cause(self, job: Job) -> RejectCause | None:
        """Whether the job's lane, or the model, has no room for it.

        In a waiting room only a rate that was seen under load says how much is too much: what a little traffic needed is no measure of a replica.
        What is full still takes from a tenant that holds less than its share of it: who floods a lane is shed, and nobody else. So a lane holds at
        most twice its cap.
        """
        policy = self._lanes.policy
        rate = self._rate.per_s if self._starting.any_ready else self._rate.placed.per_s
        lane = self._lanes.lanes[job.home]
        if len(self._lanes.jobs) + len(self._lanes.aside) >= policy.max_waiting:
            claim = lane.claim(job.request.tenant)
            if claim.count >= claim.share * policy.max_waiting or claim.share == 1.0:
                return RejectCause.MODEL_FULL
        if rate is None or not lane.count:
            return None
        most = policy.lanes[job.home].cap_s * rate
        if lane.work + job.cost > most:
            claim = lane.claim(job.request.tenant)
            if claim.work + job.cost > claim.share * most:
                return RejectCause.LANE_FULL
        return None

    def rejection(self, job: Job, cause: RejectCause, now: float) -> Admission:
        """The answer to a job without room, with the time after which there should be some."""
        lane, policy, rate = self._lanes.lanes[job.home], self._lanes.policy.lanes[job.home], self._rate.per_s
        work = lane.work if job.lane is lane else lane.work + job.cost
        excess = max(0.0, work - policy.cap_s * rate) if rate else 0.0
        retry = self._retries.setdefault(policy.name, RetryQueue())
        retry_after_s = retry.retry_after_s(job.request.request_id, job.cost, excess, rate, now, self._starting.wait_s(now))
        told = self._eta(job).predict(self.outlooks.of(job, now))
        return Admission(AdmissionKind.REJECT, policy.name, cause, (told.p50_s, told.p95_s), lane.work / rate if rate else None, retry_after_s)

    def over_limit(self, job: Job, cause: RejectCause, wait_s: float) -> Admission:
        """The answer to a job whose tenant is at a limit of its own; `wait_s` later it would not be."""
        lane = self._lanes.policy.lanes[job.home].name
        return Admission(AdmissionKind.REJECT, lane, cause, retry_after_s=jittered_s(job.request.request_id, wait_s))

    def _eta(self, job: Job) -> LaneEta:
        eta = self.etas.get(job.home_name)
        if eta is None:
            eta = self.etas[job.home_name] = LaneEta()
        return eta
