"""The lanes of a model: which lane a job waits in, which lane is served next, and who is promoted.

Starvation bound, of what is placed between the promotion of a job X and its lease. L lanes have weights w(g) that sum
to 1 - phi, the promoted have phi; C is the largest admitted cost; P is the promoted work placed meanwhile; k counts the
drains meanwhile, in which a replica is kept free for a promoted head that fits nowhere (placing.py). What is placed on
other replicas during a drain is not counted as work: that wait is the drain's.

Between two drains the promoted are backlogged and their head is placed when it is due, so by fair queueing (lane.py)
each lane g is served at most w(g) * (P + C) / phi + C, plus C where it was passed over before and kept a claim of one
request. During a drain on another replica the lanes may be passed over anew, so each stretch between drains adds 2 C a
lane. In sum the work is at most

    (P + C) / phi + 2 * L * C * (k + 1)          with one replica: without k, since nothing is placed while it drains

    P <= Q + sum over the other tenants b that are promoted meanwhile of  w(b) * ((Q + C) / w(a) + C / w_min) + C

where a is X's tenant, Q its promoted work ahead of X, and w here the tenants' weights: a tenant comes between X and its
turn with its share and one request, however many tenants there are. What replicas refused and a reservation put before
X comes on top of P.

In time, with D the longest that a lease runs and R the rate at which the replicas work while none of them is empty:

    (work) / R + (2 k + 1) * D

since a reserved replica is given to the job it is reserved for and to nobody else: a drain ends within D, and what runs
on the others when it ends does within another D. No job has more than one drain. All this depends on replicas that stay
ready and on lanes that are not reloaded (both end a reservation, and it begins anew), and P on how many tenants there
are. A property test holds both forms on saturated replicas.
"""

import heapq
import math
from collections.abc import Iterator

from deployments.scheduling.lane import FairClock, Lane
from deployments.scheduling.policy import Order, SchedulingPolicy
from deployments.scheduling.request import Job

PROMOTED = "promoted"


class Lanes:
    """All lanes, the promoted one last. `jobs` holds what waits in them, by request id, `aside` what waits to be let in
    (`suspects.py`)."""

    def __init__(self, policy: SchedulingPolicy) -> None:
        self.jobs: dict[str, Job] = {}
        self.aside: dict[str, Job] = {}
        self.largest_cost = 1.0
        self._clock = FairClock()
        self._sequence = 0
        self._wait_ids = 0
        self._promotions = Wakeups()
        self._expiries = Wakeups()
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

    def configure(self, policy: SchedulingPolicy) -> None:
        """Changes lanes, weights and order. What waits moves to the lane that is now its own (refused ones to its
        head); the promoted stay so."""
        waiting = sorted(self.jobs.values(), key=lambda job: job.sequence)
        total = sum(lane.weight for lane in policy.lanes)
        finishes = {lane.name: lane.flow.finish for lane in self.lanes}
        self.policy = policy
        self.lanes = [
            Lane(
                lane.name,
                (1.0 - policy.promoted_share) * lane.weight / total,
                by_deadline=policy.order is Order.DEADLINE,
            )
            for lane in policy.lanes
        ]
        for lane in self.lanes:
            lane.flow.finish = finishes.get(lane.name, 0.0)
        self.promoted.flow.weight = policy.promoted_share
        for lane in self.all:
            lane.reweigh({name: tenant.weight for name, tenant in policy.tenants.items()})
        self._promotions.clear()
        self._expiries.clear()
        for job in waiting:
            self.find_home(job)
            if job.promoted_s is None:
                self._push(job, self.lanes[job.home])
            self._time(job)

    def next_sequence(self) -> int:
        """The next number in order of arrival."""
        self._sequence += 1
        return self._sequence

    def enter(self, job: Job, first: bool = False) -> None:
        """A job waits: in its home, or, where it was promoted before, among the promoted. One whose replica refused it
        waits at the head, and so does one that is to be `first`."""
        self.jobs[job.request.request_id] = job
        self.largest_cost = max(self.largest_cost, job.cost)
        self._push(job, self.lanes[job.home] if job.promoted_s is None else self.promoted, first)
        self._time(job)

    def enter_again(self, job: Job, first: bool = False) -> None:
        """A job waits that was booked a while ago: the lanes may have changed since."""
        self.find_home(job)
        self.enter(job, first)

    def leave(self, job: Job) -> None:
        """A job goes without being served."""
        assert job.lane is not None
        job.lane.remove(job)
        self._gone(job)

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
        self._gone(job)
        if job.attempt == 1:  # a refused job was charged the first time
            self._clock.charge(lane.flow, job.cost)
            for other in passed_over:
                self._clock.passed_over(other.flow, self.largest_cost)

    def promote(self, now: float) -> None:
        """Moves the jobs that have waited long enough to the promoted."""
        if not self._promotions.is_due(now):
            return
        for job in self._promotions.due(now):
            assert job.lane is not None
            job.lane.remove(job)
            job.promoted_s = now
            job.latest_start_s = math.inf
            job.sequence = self.next_sequence()
            self._push(job, self.promoted)

    def is_expired(self, now: float) -> bool:
        """Whether `expire` may find something."""
        return self._expiries.is_due(now)

    def expire(self, now: float) -> Iterator[Job]:
        """Takes out the jobs whose wait is given up, one at a time: what is not asked for stays."""
        for job in self._expiries.due(now):
            self.leave(job)
            yield job

    def next_wakeup(self) -> float | None:
        """When a promotion or the end of a wait comes next."""
        return earlier(self._promotions.next_s(), self._expiries.next_s())

    def find_home(self, job: Job) -> None:
        """The lane of a job by what it is booked with, as the lanes are now."""
        policy = self.policy
        job.home = policy.lane_of(job.prefill_tokens + job.output_tokens * job.request.sequences)
        job.home_name = policy.lanes[job.home].name
        job.latest_start_s = math.inf if policy.order is Order.ARRIVAL or job.promoted_s is not None else job.deadline_s

    def _push(self, job: Job, lane: Lane, first: bool = False) -> None:
        if not lane.count:
            self._clock.activate(lane.flow)
        if job.attempt or first:
            lane.push_front(job)
        else:
            lane.push(job)

    def _time(self, job: Job) -> None:
        self._wait_ids += 1
        job.wait_id = self._wait_ids
        self._expiries.add(job.request.expires_s, job)
        promote_s = job.request.arrived_s + self.policy.lanes[job.home].max_wait_s
        if job.promoted_s is None and promote_s < job.request.expires_s:
            self._promotions.add(promote_s, job)

    def _gone(self, job: Job) -> None:
        del self.jobs[job.request.request_id]
        self._expiries.trim(len(self.jobs))
        self._promotions.trim(len(self.jobs))


_SLACK = 64


class Wakeups:
    """Times at which something becomes due for waiting jobs (a promotion, the end of a wait), in seconds of the shell's
    clock.

    A heap with lazy deletion: an entry counts only while its job waits under the wait id with which it was
    added (a job gets a new one each time it begins to wait, or its lanes change). Dead entries are dropped when they
    come to the top, or when they outnumber the living.
    """

    __slots__ = ("_heap",)

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Job]] = []

    def add(self, at_s: float, job: Job) -> None:
        """The job, which waits, is due then."""
        heapq.heappush(self._heap, (at_s, job.wait_id, job))

    def clear(self) -> None:
        """Nothing is due any more."""
        self._heap.clear()

    def next_s(self) -> float | None:
        """The first time at which a job that still waits is due."""
        heap = self._heap
        while heap and not _waits(heap[0]):
            heapq.heappop(heap)
        return heap[0][0] if heap else None

    def is_due(self, now: float) -> bool:
        """Whether the first time has come, be it that of a job that waits no more."""
        return bool(self._heap) and self._heap[0][0] <= now

    def due(self, now: float) -> Iterator[Job]:
        """Takes out the jobs that are due, first of all the one whose time came first; what is not asked for stays."""
        heap = self._heap
        while heap and heap[0][0] <= now:
            entry = heapq.heappop(heap)
            if _waits(entry):
                yield entry[2]

    def trim(self, waiting: int) -> None:
        """So many jobs wait in all."""
        if len(self._heap) > 2 * waiting + _SLACK:
            self._heap = [entry for entry in self._heap if _waits(entry)]
            heapq.heapify(self._heap)


def _waits(entry: tuple[float, int, Job]) -> bool:
    return entry[2].wait_id == entry[1] and entry[2].lane is not None


def earlier(one: float | None, other: float | None) -> float | None:
    """The earlier of two times; None is never."""
    if one is None or (other is not None and other < one):
        return other
    return one
