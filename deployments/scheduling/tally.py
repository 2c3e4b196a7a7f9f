"""What came and what became of it, counted since the start, by lane and class: the flows that metrics and autoscaling take differences of.

A promise is the request's time to first token: kept when the first token came by its deadline, missed when it came later or never (rejected for
capacity, given up waiting, lost). A request that its client cancelled before its deadline, or that broke its own tenant's limit, is neither. All
counts for the lane, by its name, in which the request waited last.
"""

from dataclasses import dataclass, field

from deployments.scheduling.reasons import Ending, RejectCause
from deployments.scheduling.request import Job

_OWN_FAULT = frozenset(
    {RejectCause.DUPLICATE_ID, RejectCause.TENANT_REQUESTS, RejectCause.TENANT_TOKENS, RejectCause.TENANT_CONCURRENCY, RejectCause.QUERY_OF_DEATH}
)


@dataclass(slots=True)
class Flow:
    """Of one lane and class: requests that arrived, their work and prompts (tokens), promises kept and missed; `slo_s`: the last one's promise."""

    arrived: int = 0
    work: float = 0.0
    prompt_tokens: int = 0
    kept: int = 0
    missed: int = 0
    slo_s: float = 0.0


@dataclass
class Tally:
    """Of one model. `finished` requests had booked `finished_work`; the engines counted `output_tokens` for those that they told of."""

    flows: dict[tuple[str, str], Flow] = field(default_factory=dict)
    finished: int = 0
    finished_work: float = 0.0
    output_tokens: int = 0
    counted: int = 0

    def arrived(self, job: Job) -> None:
        """A request came, whatever becomes of it."""
        request = job.request
        flow = self._flow(job)
        flow.arrived += 1
        flow.work += job.cost
        flow.prompt_tokens += request.prompt_tokens * request.sequences
        flow.slo_s = request.deadline_s - request.arrived_s

    def rejected(self, job: Job, cause: RejectCause) -> None:
        """It was turned away."""
        if cause not in _OWN_FAULT:
            self._flow(job).missed += 1

    def first_token(self, job: Job, now: float) -> None:
        """Its first token came."""
        flow = self._flow(job)
        if now <= job.request.deadline_s:
            flow.kept += 1
        else:
            flow.missed += 1

    def gave_up(self, job: Job, now: float) -> None:
        """It left its lane unplaced."""
        if now > job.request.deadline_s:
            self._flow(job).missed += 1

    def ended_unanswered(self, job: Job, ending: Ending, now: float) -> None:
        """Its lease ended before its first token. One that waits again (`REFUSED`) may still be in time."""
        if ending is Ending.FAILED or (ending is Ending.CANCELLED and now > job.request.deadline_s):
            self._flow(job).missed += 1

    def _flow(self, job: Job) -> Flow:
        key = (job.home_name, job.request.traffic_class)
        flow = self.flows.get(key)
        if flow is None:
            flow = self.flows[key] = Flow()
        return flow
