"""Admission control: the rejection rules are asked in their order, and a rejected caller gets the time to come back.

Here are the contract of a rule, the rules and their order (`REJECTION_RULES`), and `AdmissionControl`, which asks them,
counts rejections by lane and cause, and computes `Retry-After`. The waits are estimated elsewhere (`forecasts.py`). How
to add a rule: docs/extending.md.
"""

import math
import zlib
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from deployments.scheduling.answers import Admission, TurnedAway
from deployments.scheduling.forecasts import Forecasts
from deployments.scheduling.group_rates import GroupRates
from deployments.scheduling.ladder import Ladder
from deployments.scheduling.lanes import Lanes
from deployments.scheduling.outlook import Starting
from deployments.scheduling.placing import Placing
from deployments.scheduling.policy import TenantLimits
from deployments.scheduling.reasons import AdmissionKind, RejectCause, Rung
from deployments.scheduling.request import Job
from deployments.scheduling.suspects import Suspects
from deployments.scheduling.tally import Tally

MIN_RETRY_S = 1.0
MAX_RETRY_S = 600.0


@dataclass(frozen=True, slots=True)
class Facts:
    """What rules may look at, and must not change: the scheduler's own parts."""

    lanes: Lanes
    limits: TenantLimits
    placing: Placing
    rates: GroupRates
    starting: Starting
    suspects: Suspects
    forecasts: Forecasts
    ladder: Ladder


@dataclass(frozen=True, slots=True)
class Rejection:
    """`retry_after_s`: seconds after which the request would pass; None: once the work that waits before it is done."""

    cause: RejectCause
    retry_after_s: float | None = None


class RejectionRule(Protocol):
    """One reason to reject a request at submit."""

    def __call__(self, job: Job, admitted: bool, facts: Facts, now: float) -> Rejection | None:
        """None: this rule lets the job in. `admitted`: an owner had taken it in before, so that no limit or cap may
        reject it. A rule by which it would wait in vain still does: there is time to go elsewhere."""


def jittered_s(request_id: str, wait_s: float) -> float:
    """Whole seconds within 10 % of `wait_s`, by a hash of the request's id: no clock, no random state, the same in a
    replay."""
    jitter = 0.9 + 0.2 * (zlib.crc32(request_id.encode()) / 0xFFFFFFFF)
    return float(math.ceil(min(MAX_RETRY_S, max(MIN_RETRY_S, wait_s * jitter))))


def duplicate_id(job: Job, admitted: bool, facts: Facts, now: float) -> Rejection | None:
    """A request with that id waits, runs, or is with a peer cell. Of one that an earlier owner admitted a lease may
    stand: it waits for the next."""
    request_id, lanes = job.request.request_id, facts.lanes
    waits = lanes.waiting(request_id) is not None or request_id in lanes.away
    return Rejection(RejectCause.DUPLICATE_ID) if waits or (not admitted and facts.placing.runs(request_id)) else None


def query_of_death(job: Job, admitted: bool, facts: Facts, now: float) -> Rejection | None:
    """Its body is banned (`suspects.py`), until one of the deaths is forgotten."""
    record = facts.suspects.of(job.request.key, now)
    return (
        Rejection(RejectCause.QUERY_OF_DEATH, record.forgotten_s - now)
        if record is not None and record.banned
        else None
    )


def starts_too_late(job: Job, admitted: bool, facts: Facts, now: float) -> Rejection | None:
    """There is no replica, and the next will be ready after the request has given up."""
    return Rejection(RejectCause.STARTING) if _too_late(job, facts.starting.wait_s(job.groups, now), now) else None


def off_by_ladder(job: Job, admitted: bool, facts: Facts, now: float) -> Rejection | None:
    """A step of the ladder that is in force sends it to another model, or sheds its class."""
    if admitted or not facts.ladder.at:
        return None
    for rung, cause in ((Rung.FALLBACK, RejectCause.LADDER), (Rung.SHED, RejectCause.SHED)):
        step = facts.ladder.acting(rung, job.request.traffic_class) if rung in job.request.rungs else None
        if step is not None:
            facts.ladder.touch(step)
            return Rejection(cause)
    return None


def beyond_patience(job: Job, admitted: bool, facts: Facts, now: float) -> Rejection | None:
    """It would hardly be placed within its patience (95th percentile), or nobody knows of a replica that starts, and
    another model answers it."""
    if not job.request.impatient or facts.placing.has_room_for(job):
        return None
    start_s = facts.starting.wait_s(job.groups, now, math.inf)
    waits_s = max(start_s, facts.forecasts.expected(job, now)[1])
    return Rejection(RejectCause.PATIENCE) if now + waits_s > job.request.expires_s else None


def fits_no_context(job: Job, admitted: bool, facts: Facts, now: float) -> Rejection | None:
    """No group of the model has a context that it fits."""
    return Rejection(RejectCause.CONTEXT, MAX_RETRY_S) if job.groups == () else None


def _too_late(job: Job, wait_s: float, now: float) -> bool:
    return wait_s > 0 and now + wait_s > job.request.expires_s


def tenant_limits(job: Job, admitted: bool, facts: Facts, now: float) -> Rejection | None:
    """Its tenant is at a limit of its own (`TenantLimits`). When the request would pass is known exactly, so the jitter
    never makes the wait shorter."""
    over = None if admitted else facts.limits.reject(job, now)
    if over is None:
        return None
    cause, wait_s = over
    return Rejection(cause, max(jittered_s(job.request.request_id, wait_s), float(math.ceil(wait_s))))


def model_full(job: Job, admitted: bool, facts: Facts, now: float) -> Rejection | None:
    """As many requests wait as may. What is full still takes from a tenant that holds less than its share of it: who
    floods the model is rejected, and nobody else."""
    lanes, maximum = facts.lanes, facts.lanes.policy.max_waiting
    if admitted or len(lanes.jobs) + len(lanes.guests) + len(lanes.aside) < maximum:
        return None
    claim = lanes.home_of(job).claim(job.request.tenant)
    return Rejection(RejectCause.MODEL_FULL) if claim.count >= claim.share * maximum or claim.share == 1.0 else None


def lane_full(job: Job, admitted: bool, facts: Facts, now: float) -> Rejection | None:
    """As many seconds of work wait in its lane as may; for who holds less than its share as `model_full`. So a lane
    holds at most twice its cap.

    Without a ready replica only a rate that was seen under load says how much is too much: what a little traffic needed
    is no measure of a replica.
    """
    lane = facts.lanes.home_of(job)
    if admitted or not lane.count:
        return None
    rate = facts.rates.of(lane.groups) if facts.starting.any_ready(lane.groups) else facts.rates.backlogged(lane.groups)
    if rate is None:
        return None
    maximum = facts.lanes.policy.lanes[job.home].cap_s * rate
    if lane.work + job.cost <= maximum:
        return None
    claim = lane.claim(job.request.tenant)
    return Rejection(RejectCause.LANE_FULL) if claim.work + job.cost > claim.share * maximum else None


REJECTION_RULES: tuple[RejectionRule, ...] = (
    duplicate_id,
    query_of_death,
    fits_no_context,
    starts_too_late,
    tenant_limits,
    off_by_ladder,
    model_full,
    lane_full,
    beyond_patience,
)
"""In the order in which they are asked: the first one that rejects decides."""

_UNKNOWN_RATE_S = 5.0


class RetryQueue:
    """When a rejected caller should come back: a place in an imaginary queue behind the real one of a lane, so that a
    storm of rejected callers returns spread out.

    The cost of each rejection is added to those rejected before it; the sum drains at the service rate. A caller that
    obeys meets a lane with room; all of them together offer no more than the cluster can do.
    """

    __slots__ = ("_booked_until_s",)

    def __init__(self) -> None:
        self._booked_until_s = 0.0

    def retry_after_s(
        self, request_id: str, cost: float, excess: float, rate: float | None, now: float, start_s: float = 0.0
    ) -> float:
        """Whole seconds to wait. `excess`: the work that must be done before there is room; `rate`: work a second, if
        known. Nothing is done before `start_s` seconds from now, when there is a replica, and nobody
        is asked to come back sooner."""
        if rate is None:
            wait_s = start_s or _UNKNOWN_RATE_S
        else:
            start = max(now + start_s + excess / rate, self._booked_until_s)
            self._booked_until_s = min(start + cost / rate, now + MAX_RETRY_S)
            wait_s = start - now
        return max(jittered_s(request_id, wait_s), float(math.ceil(min(MAX_RETRY_S, start_s))))


class AdmissionControl:
    """Of one model. `rejections` by the name of the lane and the cause."""

    def __init__(self, facts: Facts, tally: Tally) -> None:
        self.rejections: Counter[tuple[str, str]] = Counter()
        self._facts = facts
        self._forecasts = facts.forecasts
        self._tally = tally
        self._retries: dict[str, RetryQueue] = {}

    def reload(self) -> None:
        """The lanes are new."""
        names = {lane.key for lane in self._facts.lanes.lanes}
        self._retries = {name: retry for name, retry in self._retries.items() if name in names}

    def reject(self, job: Job, admitted: bool, rules: Iterable[RejectionRule], now: float) -> Admission | None:
        """The answer to a new request that may not enter its lane, by the first rule that says so. None: it may."""
        for rule in rules:
            rejection = rule(job, admitted, self._facts, now)
            if rejection is not None:
                answer = self._answer(job, rejection, now)
                self._count(job, answer)
                return answer
        return None

    def reject_waiting(self, decided: list[TurnedAway], now: float) -> None:
        """Rejects those that wait for a replica in vain as soon as that is known, while there is time to go elsewhere.

        Each is added to `decided` as it leaves its lane.
        """
        starting, lanes = self._facts.starting, self._facts.lanes
        waits_s = {lane.groups: starting.wait_s(lane.groups, now, math.inf) for lane in lanes.all if lane.count}
        if any(waits_s.values()):
            for job in [one for one in lanes.jobs.values() if _too_late(one, waits_s[one.groups], now)]:
                is_known = waits_s[job.groups] < math.inf
                if not is_known and not job.request.impatient:
                    continue
                cause = RejectCause.STARTING if is_known else RejectCause.PATIENCE
                answer = self._answer(job, Rejection(cause), now)
                lanes.leave(job)
                self._turn_away(job, answer, decided)
                self._forecasts.gave_up(job, now)
        starting.doubt = False

    def reject_banned(self, job: Job, forgotten_in_s: float, decided: list[TurnedAway], now: float) -> None:
        """Rejects a job that waited aside of the lanes, and is added to `decided`."""
        rejection = Rejection(RejectCause.QUERY_OF_DEATH, forgotten_in_s)
        self._turn_away(job, self._answer(job, rejection, now), decided)

    def _turn_away(self, job: Job, answer: Admission, decided: list[TurnedAway]) -> None:
        decided.append(TurnedAway(job.request, answer))
        self._facts.limits.end(job)
        self._count(job, answer)

    def _count(self, job: Job, answer: Admission) -> None:
        if answer.cause is not None:
            self._tally.rejected(job, answer.cause)
        self.rejections[answer.lane, str(answer.cause)] += 1

    def _answer(self, job: Job, rejection: Rejection, now: float) -> Admission:
        if rejection.retry_after_s is not None:
            return Admission(
                AdmissionKind.REJECT, job.home_name, rejection.cause, retry_after_s=rejection.retry_after_s
            )
        lanes = self._facts.lanes
        lane, policy = lanes.home_of(job), lanes.policy.lanes[job.home]
        rate = self._facts.rates.of(lane.groups)
        work = lane.work if job.lane is lane else lane.work + job.cost
        excess = max(0.0, work - policy.cap_s * rate) if rate else 0.0
        retry = self._retries.setdefault(lane.key, RetryQueue())
        retry_after_s = retry.retry_after_s(
            job.request.request_id, job.cost, excess, rate, now, self._facts.starting.wait_s(job.groups, now)
        )
        eta_s = self._forecasts.expected(job, now)
        return Admission(
            AdmissionKind.REJECT, policy.name, rejection.cause, eta_s, lane.work / rate if rate else None, retry_after_s
        )
