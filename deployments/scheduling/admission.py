"""What `Scheduler.submit` answers, and the rules by which it does: caps in seconds of work, honest waits, computed times to come back."""

from dataclasses import dataclass

from deployments.scheduling.drain import work_before
from deployments.scheduling.eta import LATE, TIMELY, LaneEta
from deployments.scheduling.lanes import Lanes
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

    def __init__(self, lanes: Lanes, rate: ServiceRate) -> None:
        self.etas: dict[str, LaneEta] = {}
        self._retries: dict[str, RetryQueue] = {}
        self._lanes = lanes
        self._rate = rate

    def base_s(self, job: Job, now: float) -> tuple[float, int]:
        """The wait if the lanes drain by their shares at the measured rate, and by which of two ways the job would be served (eta.py).

        In time: behind those of its lane that can still meet their deadlines. Too late for that, it comes after all of them, or is promoted and waits
        among the promoted, whichever is sooner.
        """
        rate = self._rate.per_s
        if rate is None:
            return 0.0, TIMELY
        lanes, lane = self._lanes, self._lanes.lanes[job.home]
        others = [(other.work, other.flow.weight) for other in lanes.all if other is not lane]
        timely_s = work_before(max(0.0, lane.work - lane.late_work), lane.flow.weight, others) / rate
        slack_s = max(0.0, job.latest_start_s - now)
        if timely_s <= slack_s:
            return timely_s, TIMELY
        last_s = work_before(lane.work, lane.flow.weight, others) / rate
        beside = ((other.work - other.late_work, other.flow.weight) for other in lanes.lanes)
        promoted_s = lanes.policy.lanes[job.home].max_wait_s + work_before(lanes.promoted.work, lanes.promoted.flow.weight, beside) / rate
        return max(slack_s, min(last_s, promoted_s)), LATE

    def promise(self, job: Job, now: float) -> tuple[float, float]:
        """The wait that a queued job may expect: p50 and p95, in seconds. Called before the job enters its lane."""
        job.work_ahead, job.eta_mode = self.base_s(job, now)
        eta = self._eta(job)
        eta.promised()
        job.eta = eta.predict(job.work_ahead, job.eta_mode)
        return job.eta

    def placed(self, job: Job, now: float) -> None:
        """A job was placed: what was promised meets what happened."""
        if job.eta is not None and job.attempt == 1:
            self._eta(job).observe(job.work_ahead, job.eta_mode, job.eta, now - job.request.arrived_s, now)

    def gave_up(self, job: Job, now: float) -> None:
        """A job left its lane unplaced."""
        if job.eta is not None and job.attempt == 0:
            self._eta(job).gave_up(job.eta_mode, job.eta, now - job.request.arrived_s)

    def reject_cause(self, job: Job) -> RejectCause | None:
        """Whether the job's lane, or the model, has no room for it.

        What is full still takes from a tenant that holds less than its share of it: who floods a lane is shed, and nobody else. So a lane holds at
        most twice its cap.
        """
        policy = self._lanes.policy
        rate = self._rate.per_s
        lane = self._lanes.lanes[job.home]
        if len(self._lanes.jobs) >= policy.max_waiting:
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
        excess = max(0.0, lane.work + job.cost - policy.cap_s * rate) if rate else 0.0
        retry = self._retries.setdefault(policy.name, RetryQueue())
        retry_after_s = retry.retry_after_s(job.request.request_id, job.cost, excess, rate, now)
        eta = self._eta(job).predict(*self.base_s(job, now))
        return Admission(AdmissionKind.REJECT, policy.name, cause, eta, lane.work / rate if rate else None, retry_after_s)

    def over_limit(self, job: Job, cause: RejectCause, wait_s: float) -> Admission:
        """The answer to a job whose tenant is at a limit of its own; `wait_s` later it would not be."""
        lane = self._lanes.policy.lanes[job.home].name
        return Admission(AdmissionKind.REJECT, lane, cause, retry_after_s=jittered_s(job.request.request_id, wait_s))

    def _eta(self, job: Job) -> LaneEta:
        name = self._lanes.policy.lanes[job.home].name
        eta = self.etas.get(name)
        if eta is None:
            eta = self.etas[name] = LaneEta()
        return eta
