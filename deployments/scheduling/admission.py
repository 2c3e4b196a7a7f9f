"""Admission control: the rejection rules are asked in their order, and a rejected caller is told when to come back.

A rule is a function, listed in `registry.py` at its place in the order (the built-in ones: `rejection.py`). This
module asks them, counts rejections by lane and cause, and computes `Retry-After`; the waits are estimated elsewhere
(`forecasts.py`).

When a rejected caller should come back: a place in an imaginary queue behind the real one, so that a storm of
rejected callers returns spread out. Each rejection books its cost behind those rejected before it; bookings drain at
the service rate. A caller that obeys meets a lane with room; all of them together offer no more than the cluster can
do.
"""

import math
from collections import Counter

from deployments.scheduling.contract import Admission, TurnedAway
from deployments.scheduling.forecasts import Forecasts
from deployments.scheduling.reasons import AdmissionKind, RejectCause
from deployments.scheduling.registry import REJECTION_RULES
from deployments.scheduling.rejection import MAX_RETRY_S, Facts, Rejection, jittered_s
from deployments.scheduling.request import Job
from deployments.scheduling.tally import Tally

_UNKNOWN_RATE_S = 5.0


class RetryQueue:
    """The imaginary queue of one lane."""

    __slots__ = ("_booked_until_s",)

    def __init__(self) -> None:
        self._booked_until_s = 0.0

    def retry_after_s(
        self, request_id: str, cost: float, excess: float, rate: float | None, now: float, start_s: float = 0.0
    ) -> float:
        """Whole seconds to wait. `excess`: the work that must be done before there is room; `rate`: work a second, if
        known. Nothing is done before `start_s` seconds from now, when there is a replica, and nobody is told to come
        back sooner."""
        if rate is None:
            wait_s = start_s or _UNKNOWN_RATE_S
        else:
            start = max(now + start_s + excess / rate, self._booked_until_s)
            self._booked_until_s = min(start + cost / rate, now + MAX_RETRY_S)
            wait_s = start - now
        return max(jittered_s(request_id, wait_s), float(math.ceil(min(MAX_RETRY_S, start_s))))


class AdmissionControl:
    """Of one model. `rejections` by the name of the lane and the cause."""

    def __init__(self, facts: Facts, forecasts: Forecasts, tally: Tally) -> None:
        self.rejections: Counter[tuple[str, str]] = Counter()
        self._facts = facts
        self._forecasts = forecasts
        self._tally = tally
        self._retries: dict[str, RetryQueue] = {}

    def reload(self) -> None:
        """The lanes are new."""
        names = {lane.name for lane in self._facts.lanes.lanes}
        self._retries = {name: retry for name, retry in self._retries.items() if name in names}

    def reject(self, job: Job, admitted: bool, now: float) -> Admission | None:
        """The answer to a new request that may not enter its lane, by the first rule that says so. None: it may."""
        for rule in REJECTION_RULES:
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
        if starting.wait_s(now):
            for job in [job for job in lanes.jobs.values() if starting.is_too_late_for(job.request, now)]:
                answer = self._answer(job, Rejection(RejectCause.STARTING), now)
                lanes.leave(job)
                self._turn_away(job, answer, decided)
                self._forecasts.gave_up(job, now)
        starting.doubt = False

    def reject_aside(self, job: Job, rejection: Rejection, decided: list[TurnedAway], now: float) -> None:
        """Rejects a job that waited aside of the lanes, and is added to `decided`."""
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
        lane, policy, rate = lanes.lanes[job.home], lanes.policy.lanes[job.home], self._facts.rate.per_s
        work = lane.work if job.lane is lane else lane.work + job.cost
        excess = max(0.0, work - policy.cap_s * rate) if rate else 0.0
        retry = self._retries.setdefault(policy.name, RetryQueue())
        retry_after_s = retry.retry_after_s(
            job.request.request_id, job.cost, excess, rate, now, self._facts.starting.wait_s(now)
        )
        eta_s = self._forecasts.expected(job, now)
        return Admission(
            AdmissionKind.REJECT, policy.name, rejection.cause, eta_s, lane.work / rate if rate else None, retry_after_s
        )
