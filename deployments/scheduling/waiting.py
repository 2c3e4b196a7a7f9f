"""What waits, for whoever may serve it instead (`deployments/peering`): how long still, and what it will take. And what
a peer cell serves meanwhile."""

from dataclasses import replace

from deployments.scheduling.forecasts import Forecasts
from deployments.scheduling.lanes import Lanes
from deployments.scheduling.learned_state import LearnedState
from deployments.scheduling.placing import Placing
from deployments.scheduling.policy import TenantLimits
from deployments.scheduling.request import Job, Lease, Request, lease_away
from deployments.scheduling.snapshot import WaitingRequest
from deployments.scheduling.suspects import Suspects
from deployments.scheduling.tally import Tally


class WaitingView:
    """What waits, for whoever may serve it instead. Suspects are left out: nobody else is to serve them."""

    def __init__(
        self, lanes: Lanes, forecasts: Forecasts, placing: Placing, learned_state: LearnedState, suspects: Suspects
    ) -> None:
        self._lanes = lanes
        self._forecasts = forecasts
        self._placing = placing
        self._learned_state = learned_state
        self._suspects = suspects

    def of(self, request_id: str, now: float) -> WaitingRequest | None:
        """The request, if it waits in a lane."""
        job = self._lanes.jobs.get(request_id)
        if job is None or self._suspects.of(job.request.key, now) is not None:
            return None
        return _view(job, self._forecasts.remaining_s(job, now))

    def all(self, now: float) -> tuple[WaitingRequest, ...]:
        """Those in the lanes."""
        fresh_s: dict[int, float | None] = {}
        found = []
        for job in self._lanes.jobs.values():
            if self._suspects.of(job.request.key, now) is not None:
                continue
            key = id(self._lanes.home_of(job))
            if key not in fresh_s:
                fresh_s[key] = self._forecasts.fresh_s(job, now)
            found.append(_view(job, self._forecasts.remaining_s(job, now, fresh_s[key])))
        return tuple(found)

    def expected(self, request: Request, now: float) -> WaitingRequest:
        """The request as it would wait if it were submitted now."""
        job = Job(request, 0)
        self._learned_state.book(job, self._lanes.policy)
        self._lanes.find_home(job)
        return _view(job, 0.0 if self._placing.has_room_for(job) else self._forecasts.fresh_s(job, now))


def _view(job: Job, p95_s: float | None) -> WaitingRequest:
    return WaitingRequest(job.request, job.home_name, p95_s, job.output_tokens, job.credit_tokens)


class Withdrawals:
    """Requests that a peer cell serves: out of their lanes, and not over. They are in `lanes.away`, by request id.

    They arrived here, so they stay this cell's demand. Each counts against its tenant's limits until it is over, and
    meets or misses its SLO by the first token that its client gets from the peer. What the peer's engine counts is
    learned by the lease that `take` returns (`Scheduler.learn`). Its wait estimate teaches nothing: something else than
    its lane ended the wait.
    """

    def __init__(self, lanes: Lanes, forecasts: Forecasts, limits: TenantLimits, tally: Tally) -> None:
        self._lanes = lanes
        self._forecasts = forecasts
        self._limits = limits
        self._tally = tally

    def take(self, request_id: str, now: float) -> Lease | None:
        """A request leaves its lane, which is an attempt at it. None where it does not wait."""
        lanes = self._lanes
        job = lanes.waiting(request_id)
        if job is None:
            return None
        lanes.take_out(job)
        self._forecasts.withdraw(job)
        job.request = replace(job.request, attempts=job.request.attempts + 1)
        self._tally.withdrawn += 1
        lanes.away[request_id] = job
        return lease_away(job.request, now, job.output_tokens, job.home)

    def take_back(self, request_id: str) -> Job | None:
        """The peer has lost it, and no token of it was seen: it is to wait again."""
        return self._lanes.away.pop(request_id, None)

    def first_token(self, request_id: str, now: float) -> None:
        """Its client has the first token."""
        job = self._lanes.away.get(request_id)
        if job is not None:
            self._tally.first_token(job, now)

    def end(self, request_id: str, now: float) -> bool:
        """It is over, served or not. False where it was not withdrawn."""
        job = self._lanes.away.pop(request_id, None)
        if job is None:
            return False
        self._limits.end(job)
        self._tally.gave_up(job, now)
        return True
