"""A small world in simulated time: each lease runs for its cost over the speed of a sequence, and what became of each
promoted request is kept."""

import heapq
import math
from collections import defaultdict, deque
from dataclasses import dataclass, field

from deployments.scheduling import Ending, Lease, Placement, Request, Scheduler
from deployments.scheduling.lane import Lane
from deployments.scheduling.request import Groups, Job


@dataclass(slots=True)
class Promotion:
    """One promoted request, from its promotion until it was placed: `work` placed meanwhile, the promoted's part of it,
    by queue of the promoted, and from which other tenants of its own queue. `drains`: how often a replica drained for
    its queue (for itself, too), or one of its groups for another queue. What was placed elsewhere during such a drain
    does not count as work.
    """

    promoted_s: float
    tenant: str
    queue: str
    groups: Groups
    own_ahead: float
    """Work of its own tenant and queue that was promoted before it and waited still."""
    ahead: dict[str, float]
    """All such work, by queue."""
    drains: int
    placed_s: float = math.nan
    work: float = 0.0
    promoted: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    others: set[str] = field(default_factory=set)
    was_over: bool = False
    """Its tenant was over its share meanwhile: then the bound does not hold."""

    @property
    def promoted_work(self) -> float:
        """Of all queues of the promoted."""
        return sum(self.promoted.values())

    def minds(self, queue: str, group: str) -> bool:
        """Whether it waits for a drain: of its own queue, or of a replica that it might have."""
        return queue == self.queue or self.groups is None or group in self.groups

    @property
    def wait_s(self) -> float:
        """From promotion to lease."""
        return self.placed_s - self.promoted_s


class TimedWorld:
    """`speed`: tokens of cost a second, of each sequence that runs."""

    def __init__(self, scheduler: Scheduler, speed: float) -> None:
        self.scheduler = scheduler
        self.speed = speed
        self.now = 0.0
        self.longest_s = 0.0
        """The longest that any lease ran."""
        self.promotions: dict[str, Promotion] = {}
        self.placed: list[str] = []
        self.reservations: list[tuple[str, float]] = []
        """Each time that a replica began to drain for a promoted request: for which, and when."""
        self._waiting: dict[str, Promotion] = {}
        self._costs: dict[str, float] = {}
        self._ends: list[tuple[float, int, Lease]] = []
        self._draining: dict[str, str] = {}
        """The groups of the replicas that drain, by queue of the promoted."""
        self._drains_from: deque[tuple[int, str, str]] = deque()
        self._begin = scheduler.holds.begin
        scheduler.holds.begin = self._hold_begins  # type: ignore[method-assign]

    def submit(self, request: Request) -> None:
        """A request arrives now; it must be admitted."""
        assert self.scheduler.submit(request, self.now).accepted
        self._costs[request.request_id] = self.scheduler.lanes.jobs[request.request_id].cost
        self._step()

    def run_to(self, until: float) -> None:
        """Ends leases and wakes the scheduler until then."""
        while (at := self._next_s()) <= until:
            self.now = max(self.now, at)
            if self._ends and self._ends[0][0] <= self.now:
                lease = heapq.heappop(self._ends)[2]
                self.scheduler.first_token(lease, self.now)
                self.scheduler.release(lease, Ending.FINISHED, None, self.now)
            self._step()
        self.now = max(self.now, until)

    def finish(self) -> None:
        """Runs until nothing waits or runs."""
        while (at := self._next_s()) < math.inf:
            self.run_to(at)

    def _step(self) -> None:
        self._see_promotions()
        self._see_shares()
        for placement in self.scheduler.step(self.now).placements:
            while self._drains_from and self._drains_from[0][0] == len(self.placed):
                self._drain()
            self._account(placement)
        while self._drains_from:
            self._drain()
        self._see_shares()

    def _see_shares(self) -> None:
        for waiting in self._waiting.values():
            waiting.was_over |= self.scheduler.lanes.accounts.is_over(waiting.tenant)

    def _account(self, placement: Placement) -> None:
        name = placement.request.request_id
        cost = self._costs[name]
        self.placed.append(name)
        self.longest_s = max(self.longest_s, cost / self.speed)
        heapq.heappush(self._ends, (self.now + cost / self.speed, placement.lease.lease_id, placement.lease))
        queue = ""
        if placement.promoted:
            placed = self._waiting.pop(name)
            placed.placed_s, queue = self.now, placed.queue
            self._draining.pop(queue, None)
        for waiting in self._waiting.values():
            if any(waiting.minds(*drain) for drain in self._draining.items()):
                continue
            waiting.work += cost
            if queue:
                waiting.promoted[queue] += cost
            if queue == waiting.queue:
                waiting.others |= {placement.request.tenant} - {waiting.tenant}

    def _drain(self) -> None:
        _, queue, group = self._drains_from.popleft()
        self._draining[queue] = group
        for waiting in self._waiting.values():
            waiting.drains += waiting.minds(queue, group)

    def _hold_begins(self, lane: Lane, job: Job) -> None:
        before = self.scheduler.holds.by_lane.get(lane.key)
        self._begin(lane, job)
        hold = self.scheduler.holds.by_lane.get(lane.key)
        if hold is not None and hold is not before:
            self._drains_from.append((self.scheduler.placing.placed, lane.key, hold.replica.capacity.group))
            self.reservations.append((job.request.request_id, self.now))

    def _see_promotions(self) -> None:
        self.scheduler.lanes.promote(self.now)
        promoted = [
            job
            for job in self.scheduler.lanes.jobs.values()
            if job.promoted_s is not None and job.request.request_id not in self.promotions
        ]
        for job in sorted(promoted, key=lambda job: job.sequence):
            assert job.lane is not None
            name, tenant, queue = job.request.request_id, job.request.tenant, job.lane.key
            ahead: dict[str, float] = defaultdict(float)
            own = 0.0
            for other, waiting in self._waiting.items():
                ahead[waiting.queue] += self._costs[other]
                own += self._costs[other] if (waiting.tenant, waiting.queue) == (tenant, queue) else 0.0
            promotion = Promotion(self.now, tenant, queue, job.groups, own, ahead, 0)
            promotion.drains = sum(promotion.minds(*drain) for drain in self._draining.items())
            self.promotions[name] = self._waiting[name] = promotion

    def _next_s(self) -> float:
        wakeup = self.scheduler.next_wakeup()
        return min(self._ends[0][0] if self._ends else math.inf, math.inf if wakeup is None else max(wakeup, self.now))
