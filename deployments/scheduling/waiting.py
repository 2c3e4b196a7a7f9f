"""What waits, for whoever may serve it instead (`deployments/peering`): how long still, and what it will take."""

from deployments.scheduling.forecasts import Forecasts
from deployments.scheduling.lanes import Lanes
from deployments.scheduling.learned_state import LearnedState
from deployments.scheduling.placing import Placing
from deployments.scheduling.request import Job, Request
from deployments.scheduling.snapshot import WaitingRequest
from deployments.scheduling.suspects import Suspects


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
