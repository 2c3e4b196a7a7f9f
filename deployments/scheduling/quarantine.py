"""Where requests wait that are suspects (`suspects.py`): aside of the lanes, so that nobody waits behind them.

Of each suspect one run goes on at a time, whoever sent it: another would cost another replica, and the first one's
outcome settles it for all. Those that had no first token when their replica died are tried, one at a time in the whole
model, each until its first token is there, and before all other suspects: then a replica that dies meanwhile is its
doing. After that the others run, all at once. Who is let out waits in its lane like everybody else (who is tried, at
its head); who is banned is turned away.
"""

from collections.abc import Iterator

from deployments.scheduling.admission import AdmissionControl
from deployments.scheduling.contract import TurnedAway
from deployments.scheduling.fleet import Fleet
from deployments.scheduling.forecasts import Forecasts
from deployments.scheduling.lanes import Lanes
from deployments.scheduling.placing import Placing
from deployments.scheduling.reasons import RejectCause
from deployments.scheduling.rejection import Rejection
from deployments.scheduling.request import Job, Lease
from deployments.scheduling.suspects import SuspectRun, Suspects


class Quarantine:
    """The scheduler gives it its own parts. The jobs are in `lanes.aside`, in the order in which they came."""

    def __init__(
        self,
        suspects: Suspects,
        lanes: Lanes,
        fleet: Fleet,
        placing: Placing,
        forecasts: Forecasts,
        admission: AdmissionControl,
    ) -> None:
        self._suspects = suspects
        self._lanes = lanes
        self._fleet = fleet
        self._placing = placing
        self._forecasts = forecasts
        self._admission = admission
        self._out: dict[str, Job] = {}
        self._trial: Job | None = None

    def takes(self, job: Job, now: float) -> bool:
        """Takes in a job that is about to enter its lane, if it is a suspect."""
        if self._suspects.of(job.request.key, now) is None:
            return False
        self._forecasts.withdraw(job)
        self._lanes.aside[job.request.request_id] = job
        return True

    def expire(self, now: float) -> Iterator[Job]:
        """Takes out the jobs whose wait is given up, one at a time."""
        for request_id, job in list(self._lanes.aside.items()):
            if job.request.expires_s <= now:
                del self._lanes.aside[request_id]
                yield job

    def next_wakeup(self) -> float | None:
        """When the next of these waits is given up."""
        return min((job.request.expires_s for job in self._lanes.aside.values()), default=None)

    def step(self, turned_away: list[TurnedAway], now: float) -> None:
        """Takes new suspects out of the lanes, and lets out who may run. Those that are turned away are added to the
        list."""
        self._suspects.forget(now)
        if self._suspects.doubt:
            self._suspects.doubt = False
            self._take_from_lanes(now)
        if self._lanes.aside:
            self._turn_away(turned_away, now)
            self._let_out_untried(now)
            self._let_out_others(now)

    def run_of(self, lease: Lease, job: Job) -> SuspectRun:
        """A lease that stands, for those who look into deaths."""
        answered = not self._fleet.by_id[lease.replica_id].is_prefilling(lease)
        return SuspectRun(lease.replica_id, job.request.key, answered, job is self._trial and not answered)

    def tried_on(self, replica_id: str) -> str | None:
        """Who is tried on that replica."""
        lease = None if self._trial is None else self._placing.lease_of(self._trial.request.request_id)
        if lease is None or lease.replica_id != replica_id or not self._fleet.by_id[replica_id].is_prefilling(lease):
            return None
        return lease.request.key

    def _turn_away(self, turned_away: list[TurnedAway], now: float) -> None:
        for request_id, job in list(self._lanes.aside.items()):
            record = self._suspects.of(job.request.key, now)
            if record is not None and record.banned:
                del self._lanes.aside[request_id]
                self._admission.reject_aside(
                    job, Rejection(RejectCause.QUERY_OF_DEATH, record.forgotten_s - now), turned_away, now
                )

    def _let_out_untried(self, now: float) -> None:
        """The first of those that are to be tried, before all others of its lane: all suspects wait for its outcome."""
        if self._is_trying():
            return
        for job in self._lanes.aside.values():
            record = self._suspects.of(job.request.key, now)
            if record is not None and not record.answered and self._is_alone(job):
                self._trial = job
                self._let_out(job, first=True)
                return

    def _let_out_others(self, now: float) -> None:
        """Those that are clear by now; and, once nobody is left to be tried, those that had their first token."""
        tried = self._is_trying()
        for job in list(self._lanes.aside.values()):
            record = self._suspects.of(job.request.key, now)
            if record is None or (record.answered and not tried and self._is_alone(job)):
                self._let_out(job)

    def _let_out(self, job: Job, first: bool = False) -> None:
        del self._lanes.aside[job.request.request_id]
        self._out = {key: out for key, out in self._out.items() if out.lane is not None}
        self._out[job.request.key] = job
        self._lanes.enter_again(job, first)

    def _is_alone(self, job: Job) -> bool:
        """Whether no other of its kind runs, or waits to."""
        key = job.request.key
        out = self._out.get(key)
        return (out is None or out.lane is None) and not self._placing.runs_of[key]

    def _is_trying(self) -> bool:
        """Whether one is out that has not had its first token."""
        trial = self._trial
        if trial is None:
            return False
        lease = self._placing.lease_of(trial.request.request_id)
        if trial.lane is None and (lease is None or not self._fleet.by_id[lease.replica_id].is_prefilling(lease)):
            self._trial = None
        return self._trial is not None

    def _take_from_lanes(self, now: float) -> None:
        for job in list(self._lanes.jobs.values()):
            record = self._suspects.of(job.request.key, now)
            if record is not None and (record.banned or self._out.get(job.request.key) is not job):
                self._lanes.leave(job)
                self.takes(job, now)
