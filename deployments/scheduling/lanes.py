"""The lanes of a model: which lane a job waits in, which lane is served next, and who is promoted.

Starvation bound. L lanes with weights w(g) that sum to 1 - phi, the promoted with phi; C the largest admitted cost; P the promoted work ahead of a
promoted job when it was promoted or promoted before it is served (at most what the lanes' caps let in). While the job waits among the promoted, that
flow is backlogged, so by fair queueing (fair.py) each lane g is served at most

    S(g) <= w(g) * S(promoted) / phi + C + w(g) * C / phi,      and S(promoted) <= P,

plus C where it was passed over before and kept a claim of one request. Summed over the lanes, the work placed between promotion and lease is at most

    (P + C) / phi + 2 * L * C

not counting what is placed on other replicas while a promoted head's replica drains for it (holds.py). In time: that over the service rate, plus one
replica's drain for each promoted job ahead that fits nowhere. A property test holds the work form.
"""

import heapq
import math

from deployments.scheduling.fair import FairClock
from deployments.scheduling.lane import Lane
from deployments.scheduling.policy import Order, Policy
from deployments.scheduling.request import Job

PROMOTED = "promoted"


class Lanes:
    """All lanes, the promoted one last. `jobs` holds what waits, by request id."""

    def __init__(self, policy: Policy) -> None:
        self.jobs: dict[str, Job] = {}
        self.largest_cost = 1.0
        self._clock = FairClock()
        self._sequence = 0
        self._promotions: list[tuple[float, int, Job]] = []
        self._expiries: list[tuple[float, int, Job]] = []
        self.policy = policy
        self.lanes: list[Lane] = []
        self.promoted = Lane(PROMOTED, policy.promoted_share, by_deadline=False)
        self.configure(policy)

    @property
    def all(self) -> list[Lane]:
        """The lanes by length, then the promoted."""
        return [*self.lanes, self.promoted]

    @property
    def work(self) -> float:
        """What waits, in prefill tokens."""
        return self.promoted.work + sum(lane.work for lane in self.lanes)

    def configure(self, policy: Policy) -> None:
        """Changes lanes, weights and order. What waits moves to the lane that is now its own; the promoted stay promoted."""
        waiting = sorted((job for job in self.jobs.values() if job.lane is not self.promoted), key=lambda job: job.sequence)
        total = sum(lane.weight for lane in policy.lanes)
        self.policy = policy
        self.lanes = [
            Lane(lane.name, (1.0 - policy.promoted_share) * lane.weight / total, by_deadline=policy.order is Order.DEADLINE) for lane in policy.lanes
        ]
        for lane in self.all:
            lane.tenant_weights = {name: tenant.weight for name, tenant in policy.tenants.items()}
        self.promoted.flow.weight = policy.promoted_share
        for job in self.jobs.values():
            self._find_home(job)
        for job in waiting:
            self._push(job, self.lanes[job.home])
            self._time_promotion(job)

    def next_sequence(self) -> int:
        """The next number in order of arrival."""
        self._sequence += 1
        return self._sequence

    def enter(self, job: Job) -> None:
        """A new job waits in its lane."""
        self.jobs[job.request.request_id] = job
        self.largest_cost = max(self.largest_cost, job.cost)
        self._find_home(job)
        self._push(job, self.lanes[job.home])
        self._time_promotion(job)
        heapq.heappush(self._expiries, (job.request.expires_s, job.number, job))

    def enter_front(self, job: Job) -> None:
        """A job whose replica refused it waits at the head of the lane that it left."""
        self.jobs[job.request.request_id] = job
        self._find_home(job)  # the lanes may have changed since it was placed
        lane = self.lanes[job.home] if job.promoted_s is None else self.promoted
        if not lane.count:
            self._clock.activate(lane.flow)
        lane.push_front(job)
        if job.promoted_s is None:
            self._time_promotion(job)
        heapq.heappush(self._expiries, (job.request.expires_s, job.number, job))

    def leave(self, job: Job) -> None:
        """A job goes without being served."""
        assert job.lane is not None
        job.lane.remove(job)
        del self.jobs[job.request.request_id]

    def due(self, passed_over: list[Lane]) -> Lane | None:
        """The backlogged lane that is served next, of those not passed over already."""
        best: Lane | None = None
        for lane in self.lanes:
            if lane.count and lane not in passed_over and (best is None or lane.flow.start < best.flow.start):
                best = lane
        promoted = self.promoted
        if promoted.count and promoted not in passed_over and (best is None or promoted.flow.start <= best.flow.start):
            best = promoted
        return best

    def serve(self, lane: Lane, job: Job, passed_over: list[Lane]) -> None:
        """The head of `lane` is placed; the lanes passed over for it keep a claim of at most one request."""
        lane.take(job)
        del self.jobs[job.request.request_id]
        if job.attempt == 1:  # a refused job was charged the first time
            self._clock.charge(lane.flow, job.cost)
            for other in passed_over:
                self._clock.passed_over(other.flow, self.largest_cost)

    def promote(self, now: float) -> None:
        """Moves the jobs that have waited long enough to the promoted."""
        promotions = self._promotions
        while promotions and promotions[0][0] <= now:
            promote_s, _, job = heapq.heappop(promotions)
            if job.lane is None or job.promoted_s is not None or promote_s != job.promote_s:
                continue
            job.lane.remove(job)
            job.promoted_s = now
            job.latest_start_s = math.inf
            job.sequence = self.next_sequence()
            self._push(job, self.promoted)

    def expire(self, now: float) -> list[Job]:
        """Takes out the jobs whose wait is given up."""
        expired: list[Job] = []
        expiries = self._expiries
        while expiries and expiries[0][0] <= now:
            _, _, job = heapq.heappop(expiries)
            if job.lane is not None and self.jobs.get(job.request.request_id) is job:
                self.leave(job)
                expired.append(job)
        return expired

    def next_wakeup(self) -> float | None:
        """When a promotion or the end of a wait comes next."""
        return min((time for time in (_top(self._promotions), _top(self._expiries)) if time is not None), default=None)

    def _find_home(self, job: Job) -> None:
        job.home = self.policy.lane_of(job.prefill_tokens + job.output_tokens * job.request.sequences)
        if self.policy.order is Order.ARRIVAL or job.promoted_s is not None:
            job.latest_start_s = math.inf

    def _push(self, job: Job, lane: Lane) -> None:
        if not lane.count:
            self._clock.activate(lane.flow)
        lane.push(job)

    def _time_promotion(self, job: Job) -> None:
        job.promote_s = job.request.arrived_s + self.policy.lanes[job.home].max_wait_s
        if job.promote_s < job.request.expires_s:
            heapq.heappush(self._promotions, (job.promote_s, job.number, job))


def _top(heap: list[tuple[float, int, Job]]) -> float | None:
    """The first time in the heap whose job still waits."""
    while heap and heap[0][2].lane is None:
        heapq.heappop(heap)
    return heap[0][0] if heap else None
