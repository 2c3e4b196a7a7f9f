"""A lane: the jobs of one length class (or the promoted ones), shared fairly between tenants.

What waits is counted as it comes and goes: `work` in prefill tokens, never recounted.
"""

import heapq
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

from deployments.scheduling.fair import FairClock, Flow
from deployments.scheduling.request import Job
from deployments.scheduling.tenant_queue import TenantQueue


@dataclass(frozen=True, slots=True)
class Claim:
    """One tenant in one lane: its fair `share`, how many of its jobs wait, and their work."""

    share: float
    count: int
    work: float


class Lane:
    """Jobs by tenant. `flow` is the lane's own claim among lanes."""

    def __init__(self, name: str, weight: float, by_deadline: bool) -> None:
        self.name = name
        self.flow = Flow(weight)
        self.by_deadline = by_deadline
        self.tenant_weights: Mapping[str, float] = {}
        self.count = 0
        self.work = 0.0
        self.late_work = 0.0
        """...of it, of jobs that can no longer meet their deadline."""
        self.late_waits = False
        """Whether there was any at the last step."""
        self.turned_late: list[Job] = []
        """Those whose latest start was found to have passed, for the forecasts to take."""
        self._clock = FairClock()
        self._tenants: dict[str, TenantQueue] = {}
        self._ready: list[tuple[float, int, TenantQueue]] = []
        self._entries = 0
        self._front: list[Job] = []
        self._arrivals: deque[Job] = deque()
        self._active_weight = 0.0

    def push(self, job: Job) -> None:
        """A job waits here from now on."""
        job.lane, job.late = self, False
        self.count += 1
        self.work += job.cost
        self._arrived(job)
        name = job.request.tenant
        queue = self._tenants.get(name)
        if queue is None:
            queue = self._tenants[name] = TenantQueue(self, self.tenant_weights.get(name, 1.0))
        queue.push(job, job.deadline_s if self.by_deadline else job.sequence)
        if queue.count == 1:
            self._active_weight += queue.flow.weight
            self._clock.activate(queue.flow)
            self._enter(queue)

    def push_front(self, job: Job) -> None:
        """A job that was placed and refused waits before all others: its tenant was charged already."""
        job.lane = self
        self.count += 1
        self.work += job.cost
        self._front.append(job)
        self._arrived(job)

    def remove(self, job: Job) -> None:
        """A job leaves without being served."""
        self._leave(job)
        if job in self._front:
            self._front.remove(job)
            return
        queue = self._tenants[job.request.tenant]
        queue.left(job)
        self._forget_idle(job.request.tenant, queue)

    def head(self, now: float) -> Job | None:
        """The job that is next: of the tenant whose turn it is, the one with the earliest deadline."""
        if self._front:
            return self._front[0]
        ready = self._ready
        while ready:
            _, entry, queue = ready[0]
            if entry == queue.entry and queue.count:
                return queue.head(now)
            heapq.heappop(ready)
        return None

    def oldest(self) -> Job | None:
        """The job that came here first. Looking changes nothing that a decision depends on, unlike `head`."""
        arrivals = self._arrivals
        while arrivals and arrivals[0].lane is not self:
            arrivals.popleft()
        return arrivals[0] if arrivals else None

    def take(self, job: Job) -> None:
        """Serves the job that `head` returned, and charges its tenant."""
        self._leave(job)
        if self._front:
            self._front.pop(0)
            return
        queue = self._tenants[job.request.tenant]
        queue.left(job)
        self._clock.charge(queue.flow, job.cost)
        heapq.heappop(self._ready)
        if queue.count:
            self._enter(queue)
        self._forget_idle(job.request.tenant, queue)

    def claim(self, tenant: str) -> Claim:
        """What the tenant has of the lane, among those that wait in it now and itself."""
        queue = self._tenants.get(tenant)
        weight = self.tenant_weights.get(tenant, 1.0) if queue is None else queue.flow.weight
        active = self._active_weight if queue is not None and queue.count else self._active_weight + weight
        return Claim(weight / active, 0, 0.0) if queue is None else Claim(weight / active, queue.count, queue.work)

    def _arrived(self, job: Job) -> None:
        self._arrivals.append(job)
        if len(self._arrivals) > 2 * self.count + 64:
            self._arrivals = deque(kept for kept in self._arrivals if kept.lane is self)

    def _leave(self, job: Job) -> None:
        job.lane = None
        self.count -= 1
        self.work = self.work - job.cost if self.count else 0.0

    def _enter(self, queue: TenantQueue) -> None:
        self._entries += 1
        queue.entry = self._entries
        heapq.heappush(self._ready, (queue.flow.start, self._entries, queue))

    def _forget_idle(self, name: str, queue: TenantQueue) -> None:
        """An idle tenant is remembered only while it is ahead of its share."""
        if not queue.count:
            self._active_weight = self._active_weight - queue.flow.weight if self.count > len(self._front) else 0.0
        if not queue.count and queue.flow.finish <= self._clock.virtual:
            del self._tenants[name]
        elif len(self._tenants) > 2 * len(self._ready) + 1_024:
            virtual = self._clock.virtual
            self._tenants = {key: kept for key, kept in self._tenants.items() if kept.count or kept.flow.finish > virtual}
