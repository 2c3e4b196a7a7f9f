"""A lane: the jobs of one length class (or the promoted ones), shared fairly between tenants.

Inside a tenant's queue of a lane, in the order `shortest`, the smallest key comes first:

    key = deadline + AGEING_S * w        w: the booked work, in prefill tokens (`Job.cost`)

By w alone this is shortest-job-first, of which the mean wait is least: Smith, "Various optimizers for single-stage
production", 1956; with what remains in place of w (SRPT): Schrage 1968. But under it a long job starves beside an
overload of short ones. The deadline grows with the time of arrival, so it makes what waits older: a job of work w' does
not overtake one of work w where it comes more than AGEING_S * (w - w') seconds after it.

What waits is counted as it comes and goes: `work` in prefill tokens, never recounted. What is kept is at most a small
multiple of what waits, however many came and went: dead entries of heaps (jobs that left, known by their `lane`) are
dropped when they come to the top, or when they outnumber the living. So leaving costs nothing and entering O(log n).
"""

import heapq
import math
from collections import Counter, OrderedDict, deque
from collections.abc import Mapping
from dataclasses import dataclass

from deployments.scheduling.fair import FairClock, FairFlow
from deployments.scheduling.request import Groups, Job
from deployments.scheduling.tenants import TenantAccounts

AGEING_S = 0.04
"""Seconds of deadline that a token of work weighs (docs/decisions/0046: how it was chosen)."""


class WorkByKey:
    """The waiting work of a lane by the key of its jobs, in bins: how much comes before a key. The bins double their
    width where they would be more than `_MAX_BINS`."""

    __slots__ = ("_bins", "_width")

    def __init__(self) -> None:
        self._bins: dict[int, list[float]] = {}
        self._width = _FIRST_WIDTH_S

    def add(self, key: float, work: float) -> None:
        """A job waits."""
        one = self._bins.get(math.floor(key / self._width))
        if one is None:
            one = self._bins[math.floor(key / self._width)] = [0.0, 0]
            if len(self._bins) > _MAX_BINS:
                self._widen()
                one = self._bins[math.floor(key / self._width)]
        one[0] += work
        one[1] += 1

    def remove(self, key: float, work: float) -> None:
        """...and does no more."""
        number = math.floor(key / self._width)
        one = self._bins[number]
        one[0] -= work
        one[1] -= 1
        if not one[1]:
            del self._bins[number]
            if not self._bins:
                self._width = _FIRST_WIDTH_S

    def before(self, key: float) -> float:
        """The work of smaller keys, of the key's own bin in proportion."""
        place = key / self._width
        own = math.floor(place)
        return sum([one[0] for number, one in self._bins.items() if number < own]) + (
            self._bins[own][0] * (place - own) if own in self._bins else 0.0
        )

    def _widen(self) -> None:
        narrow, self._bins, self._width = self._bins, {}, 2 * self._width
        for number, (work, count) in narrow.items():
            one = self._bins.setdefault(number // 2, [0.0, 0])
            one[0] += work
            one[1] += count


_FIRST_WIDTH_S = 1 / 64
_MAX_BINS = 128


_Heap = list[tuple[float, int, Job]]


_QUEUE_SLACK = 8


class TenantQueue:
    """The queue of one tenant in one lane. `flow` is the tenant's claim: its account in all lanes (tenants.py), among
    the promoted one of its own. `entry` names its valid place in the lane's heap, `work` is what waits."""

    __slots__ = ("_jobs", "_lane", "count", "entry", "flow", "tenant", "work")

    def __init__(self, lane: "Lane", tenant: str, flow: FairFlow) -> None:
        self.tenant = tenant
        self.flow = flow
        self.count = 0
        self.entry = 0
        self.work = 0.0
        self._lane = lane
        self._jobs: _Heap = []

    def push(self, job: Job) -> None:
        """Adds a job, ordered by its key and then by `job.sequence`."""
        self.count += 1
        self.work += job.cost
        heapq.heappush(self._jobs, (job.key, job.sequence, job))

    def left(self, job: Job) -> None:
        """A job left, from wherever it stood."""
        lane = self._lane
        self.count -= 1
        if not self.count:
            self.work = 0.0
            self._jobs.clear()
            return
        self.work -= job.cost
        if len(self._jobs) > 2 * self.count + _QUEUE_SLACK:
            self._jobs = [entry for entry in self._jobs if entry[2].lane is lane]
            heapq.heapify(self._jobs)

    def head(self) -> Job | None:
        jobs, lane = self._jobs, self._lane
        while jobs and jobs[0][2].lane is not lane:
            heapq.heappop(jobs)
        return jobs[0][2] if jobs else None


_SLACK = 64
_IDLE_TENANTS = 1_024


@dataclass(frozen=True, slots=True)
class Claim:
    """One tenant in one lane: its fair `share`, how many of its jobs wait, and their work."""

    share: float
    count: int
    work: float


class Lane:
    """Jobs by tenant. `flow` is the lane's own claim among lanes.

    Of a model with groups each lane is one of several that have its name and its claim, one for each set of `groups`
    that its jobs fit, so that a job that waits for one group keeps none from another. `home` is the index of the lane
    by length, `key` names this one alone.
    """

    def __init__(
        self,
        name: str,
        weight: float,
        shortest: bool,
        accounts: TenantAccounts,
        home: int = -1,
        groups: Groups = None,
        flow: FairFlow | None = None,
    ) -> None:
        self.name = name
        self.key = name if groups is None else f"{name}@{'+'.join(groups)}"
        self.home = home
        self.groups = groups
        self.flow = flow or FairFlow(weight)
        self.shortest = shortest
        """By key; else in the order in which they came here."""
        self.tenant_weights: Mapping[str, float] = {}
        self.count = 0
        self.work = 0.0
        self.reserved: Job | None = None
        """The job for which a replica is kept free (placing.py): it stays the head until it is placed or gone."""
        self._accounts = accounts
        self._apart = home < 0
        """The promoted: its tenants take turns by what they got here alone (lanes.py: the bound needs that)."""
        self._by_key = WorkByKey()
        self._clock = FairClock()
        self._tenants: dict[str, TenantQueue] = {}
        self._ready: list[tuple[float, int, TenantQueue]] = []
        self._entries = 0
        self._front: OrderedDict[Job, None] = OrderedDict()
        self._arrivals: deque[Job] = deque()
        self._active: Counter[float] = Counter()
        """How many tenants of each weight have something in their queue: sums of weights that come and go would
        drift."""
        self._sweep_at = _IDLE_TENANTS

    def push(self, job: Job) -> None:
        """A job waits here from now on."""
        job.lane = self
        job.key = self.key_of(job)
        self.count += 1
        self.work += job.cost
        self._arrivals.append(job)
        if self.shortest:
            self._by_key.add(job.key, job.cost)
        name = job.request.tenant
        queue = self._tenants.get(name)
        if queue is None:
            flow = FairFlow(self.tenant_weights.get(name, 1.0)) if self._apart else self._accounts.of(name)
            queue = self._tenants[name] = TenantQueue(self, name, flow)
        queue.push(job)
        if queue.count == 1:
            self._active[queue.flow.weight] += 1
            if self._apart:
                self._clock.activate(queue.flow)
            self._enter(queue)

    def push_front(self, job: Job) -> None:
        """A job that was placed and refused waits before all others but those refused before it: its tenant was charged
        already."""
        job.lane = self
        job.key = self.key_of(job)
        self.count += 1
        self.work += job.cost
        self._front[job] = None
        self._arrivals.append(job)
        if self.shortest:
            self._by_key.add(job.key, job.cost)

    def remove(self, job: Job) -> None:
        """A job leaves without being served."""
        self._leave(job)
        if job in self._front:
            del self._front[job]
            return
        queue = self._tenants[job.request.tenant]
        queue.left(job)
        if not queue.count:
            self._became_idle(job.request.tenant, queue)

    def key_of(self, job: Job) -> float:
        """By which it is ordered here."""
        return job.deadline_s + AGEING_S * job.cost if self.shortest else job.sequence

    def work_before(self, key: float) -> float:
        """The waiting work that comes before a job with that key."""
        return self._by_key.before(key) if self.shortest and key < math.inf else self.work

    def head(self) -> Job | None:
        """The job that is next: the reserved one; else the first that was refused; else, of the tenant whose turn it
        is, that with the smallest key. Tenants over their share come after all others, and keep no claim here."""
        if self.reserved is not None:
            return self.reserved
        if self._front:
            return next(iter(self._front))
        ready, over = self._ready, list[TenantQueue]()
        found: TenantQueue | None = None
        while ready and found is None:
            start, entry, queue = ready[0]
            if entry != queue.entry:
                heapq.heappop(ready)
            elif start < queue.flow.start:  # it was served in another lane
                heapq.heapreplace(ready, (queue.flow.start, entry, queue))
            elif not self._accounts.is_over(queue.tenant) or (len(self._active) == 1 and not self._apart):
                found = queue
            else:
                heapq.heappop(ready)
                over.append(queue)
        for queue in over:
            if self._apart:
                self._clock.activate(queue.flow)
            self._enter(queue)
        if found is None and over:
            found = over[0]
        return None if found is None else found.head()

    def is_over_share(self, job: Job) -> bool:
        """Whether the job, its head, is one of a tenant that is over its share, and not placed once already."""
        if job is self.reserved or job in self._front:
            return False
        return self._accounts.is_over(job.request.tenant)

    def oldest(self) -> Job | None:
        """The job that came here first. Looking changes nothing that a decision depends on, unlike `head`."""
        arrivals = self._arrivals
        while arrivals and arrivals[0].lane is not self:
            arrivals.popleft()
        return arrivals[0] if arrivals else None

    def take(self, job: Job) -> None:
        """Serves the job that `head` returned, and charges its tenant."""
        self._leave(job)
        if job in self._front:
            del self._front[job]
            return
        queue = self._tenants[job.request.tenant]
        queue.left(job)
        if self._apart:
            self._clock.charge(queue.flow, job.cost)
        if queue.count:
            self._enter(queue)
        else:
            self._became_idle(job.request.tenant, queue)

    def claim(self, tenant: str) -> Claim:
        """What the tenant has of the lane, among those that wait in it now and itself."""
        queue = self._tenants.get(tenant)
        weight = self.tenant_weights.get(tenant, 1.0)
        others = Counter(self._active)
        if queue is not None and queue.count:
            others[weight] -= 1
        share = weight / (weight + sum(each * number for each, number in others.items()))
        return Claim(share, 0, 0.0) if queue is None else Claim(share, queue.count, queue.work)

    def reweigh(self, weights: Mapping[str, float]) -> None:
        """The tenants' shares change, of what waits too; what they were served counts as it was charged."""
        self.tenant_weights = weights
        for name, queue in self._tenants.items():
            queue.flow.weight = weights.get(name, 1.0)
        self._active = Counter(queue.flow.weight for queue in self._tenants.values() if queue.count)

    def _leave(self, job: Job) -> None:
        job.lane = None
        if job is self.reserved:
            self.reserved = None
        self.count -= 1
        self.work = self.work - job.cost if self.count else 0.0
        if self.shortest:
            self._by_key.remove(job.key, job.cost)
        if len(self._arrivals) > 2 * self.count + _SLACK:
            self._arrivals = deque({kept: None for kept in self._arrivals if kept.lane is self})

    def _enter(self, queue: TenantQueue) -> None:
        """The tenant's place among those that have something; the one it had counts no more."""
        self._entries += 1
        queue.entry = self._entries
        heapq.heappush(self._ready, (queue.flow.start, self._entries, queue))
        if len(self._ready) > 2 * len(self._tenants) + _SLACK:
            self._ready = [entry for entry in self._ready if entry[1] == entry[2].entry]
            heapq.heapify(self._ready)

    def _became_idle(self, name: str, queue: TenantQueue) -> None:
        """An idle tenant is remembered only while it is ahead of its share of what others wait for."""
        queue.entry = 0
        weight = queue.flow.weight
        self._active[weight] -= 1
        if not self._active[weight]:
            del self._active[weight]
        if not self._active:
            self._tenants.clear()
            self._ready.clear()
        elif not self._apart or queue.flow.finish <= self._clock.virtual:
            del self._tenants[name]
        elif len(self._tenants) > self._sweep_at:
            virtual = self._clock.virtual
            self._tenants = {
                key: kept for key, kept in self._tenants.items() if kept.count or kept.flow.finish > virtual
            }
            self._sweep_at = 2 * len(self._tenants) + _IDLE_TENANTS
