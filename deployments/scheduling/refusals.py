"""Who is told no: at the door, or later, when what a request waits for will not come in time. Counts each, by lane and cause.

The scheduler asks; lanes, limits and tally are its own, and told here of what ends here.
"""

from collections import Counter

from deployments.scheduling.admission import Admission, Forecasts
from deployments.scheduling.availability import Starting
from deployments.scheduling.lanes import Lanes
from deployments.scheduling.limits import TenantLimits
from deployments.scheduling.reasons import AdmissionKind, RejectCause
from deployments.scheduling.request import Job
from deployments.scheduling.step import TurnedAway
from deployments.scheduling.suspects import Suspects, Suspicion
from deployments.scheduling.tally import Tally


class Refusals:
    """`counts` by the name of the lane and the cause."""

    def __init__(self, lanes: Lanes, limits: TenantLimits, starting: Starting, forecasts: Forecasts, tally: Tally, suspects: Suspects) -> None:
        self._lanes = lanes
        self._limits = limits
        self._starting = starting
        self._forecasts = forecasts
        self._tally = tally
        self._suspects = suspects
        self.counts: Counter[tuple[str, str]] = Counter()

    def at_the_door(self, job: Job, leased: bool, now: float, admitted: bool) -> Admission | None:
        """Why a new request may not enter its lane; None where it may. `leased`: one of its name runs already. `admitted`: an owner that is gone had
        taken it in."""
        rejection = self._rejection(job, leased, now, admitted)
        if rejection is not None:
            self._count(job, rejection)
        return rejection

    def turn_away(self, decided: list[TurnedAway], now: float) -> None:
        """Those that wait for a replica in vain are told so as soon as that is known, while there is time to go elsewhere.

        Each is added to `decided` as it leaves its lane.
        """
        if self._starting.wait_s(now):
            for job in [job for job in self._lanes.jobs.values() if self._starting.is_too_late_for(job.request, now)]:
                self._turn_away(job, decided, now)
        self._starting.doubt = False

    def ban(self, job: Job, record: Suspicion, decided: list[TurnedAway], now: float) -> None:
        """A job that waits aside is a query of death."""
        rejection = _banned(job, record, now)
        decided.append(TurnedAway(job.request, rejection))
        self._limits.end(job)
        self._count(job, rejection)

    def _rejection(self, job: Job, leased: bool, now: float, admitted: bool) -> Admission | None:
        if job.request.request_id in self._lanes.jobs or job.request.request_id in self._lanes.aside or (leased and not admitted):
            return self._forecasts.rejection(job, RejectCause.DUPLICATE_ID, now)
        record = self._suspects.of(job.request.key, now)
        if record is not None and record.banned:
            return _banned(job, record, now)
        if self._starting.is_too_late_for(job.request, now):
            return self._forecasts.rejection(job, RejectCause.STARTING, now)
        if admitted:
            return None
        over = self._limits.reject(job, now)
        if over is not None:
            return self._forecasts.over_limit(job, *over)
        cause = self._forecasts.reject_cause(job)
        return None if cause is None else self._forecasts.rejection(job, cause, now)

    def _turn_away(self, job: Job, decided: list[TurnedAway], now: float) -> None:
        rejection = self._forecasts.rejection(job, RejectCause.STARTING, now)
        self._lanes.leave(job)
        decided.append(TurnedAway(job.request, rejection))
        self._limits.end(job)
        self._count(job, rejection)
        self._forecasts.gave_up(job, now)

    def _count(self, job: Job, rejection: Admission) -> None:
        if rejection.cause is not None:
            self._tally.rejected(job, rejection.cause)
        self.counts[rejection.lane, str(rejection.cause)] += 1


def _banned(job: Job, record: Suspicion, now: float) -> Admission:
    return Admission(AdmissionKind.REJECT, job.home_name, RejectCause.QUERY_OF_DEATH, retry_after_s=record.forgotten_s - now)
