"""The lanes of a model: which lane a job waits in, which lane is served next, and who is promoted.

Starvation bound, of what is placed between the promotion of a job X and its lease, for tenants within their share
(tenants.py). Meanwhile whoever is over its share is passed over. The bound allows that for any lane and tenant, so the
rule does not change it. X of a tenant over its share waits until the clock has come within the slack of the tenant's
tag, that is for its own share of what is placed; the bound begins then.

L lanes have weights w(g) that sum to 1 - phi, the promoted have phi; C is the largest admitted cost; P is the promoted
work placed meanwhile; k counts the drains meanwhile, in which a replica is kept free for a promoted head that fits
nowhere (placing.py). What is placed on other replicas during a drain is not counted as work: that wait is the drain's.

Between two drains the promoted are backlogged and their head is placed when it is due, so by fair queueing (fair.py)
each lane g is served at most w(g) * (P + C) / phi + C, plus C where it was passed over before and kept a claim of one
request. During a drain on another replica the lanes may be passed over anew, so each stretch between drains adds 2 C a
lane. In sum the work is at most

    (P + C) / phi + 2 * L * C * (k + 1)          with one replica: without k, since nothing is placed while it drains

    P <= Q + sum over the other tenants b that are promoted meanwhile of  w(b) * ((Q + C) / w(a) + C / w_min) + C

where a is X's tenant, Q its promoted work ahead of X, and w here the tenants' weights: a tenant comes between X and its
turn with its share and one request, however many tenants there are. (That is why the promoted take turns by what they
got among themselves, and not by the tags of tenants.py: by these a tenant's own short requests would put off its
promoted ones for as long as they keep coming. Who is passed over there keeps no claim.) What replicas refused and a
reservation put before X comes on top of P.

In time, with D the longest that a lease runs and R the rate at which the replicas work while none of them is empty:

    (work) / R + (2 k + 1) * D

since a reserved replica is given to the job it is reserved for and to nobody else: a drain ends within D, and what runs
on the others when it ends does within another D. No job has more than one drain. All this depends on replicas that stay
ready and on lanes that are not reloaded (both end a reservation, and it begins anew), and P on how many tenants there
are.

With groups there are several queues of the promoted, and all have one claim; X waits in one of them and may use the
groups G. L counts lanes by length, as before. A drain is one for X's queue, or for another one on a replica of G.

- Of the queues that share a claim, the one with the oldest job comes first. So P is a sum: of X's queue as above, and
  of each queue that holds jobs promoted before X, as above with all of these for Q and the smallest weight for w(a).
- During a drain the other queues are served with the claim that they share, so that each stretch between drains begins
  up to C / phi behind: (P + (k + 1) C) / phi + 2 * L * C * (k + 1) in work.
- In time, R is the rate of the replicas of G. This holds because a queue of the promoted that is passed over has a
  drain, or all ready replicas of G drain for others: a head that finds no open replica, while other groups have some,
  holds a full one (`Fleet.likely`). Otherwise a lane with a small weight could take each place that comes free there:
  what is placed in other groups meanwhile renews its claim of one request.

Property tests hold both forms, in work and in time, on saturated replicas.
"""

from collections.abc import Iterator
from typing import NamedTuple

from deployments.scheduling.fair import FairClock, FairFlow
from deployments.scheduling.lane import Lane
from deployments.scheduling.policy import Order, SchedulingPolicy
from deployments.scheduling.request import Groups, Job, Wakeups
from deployments.scheduling.tenants import TenantAccounts

PROMOTED = "promoted"
_PROMOTED = -1
"""In place of the index of a lane by length."""


class WaitingGuest(NamedTuple):
    """A guest that waits aside of the lanes, until `until_s` at the latest."""

    job: Job
    until_s: float


class Lanes:
    """All lanes, the promoted one last. `jobs` holds what waits in them, by request id, `aside` what waits to be let in
    (`suspects.py`), `guests` what peer cells handed over and is to be let in (`guests.py`), `away` what a peer cell
    serves (`waiting.py`).

    `lanes` has one for each lane of the policy; of a model with groups one for each of them and each set of groups that
    its jobs fit (`Lane`), and as many of the promoted.
    """

    def __init__(self, policy: SchedulingPolicy) -> None:
        self.jobs: dict[str, Job] = {}
        self.aside: dict[str, Job] = {}
        self.guests: dict[str, WaitingGuest] = {}
        self.away: dict[str, Job] = {}
        self.newly_promoted: list[Job] = []
        """For the forecasts to take."""
        self.largest_cost = 1.0
        self.accounts = TenantAccounts()
        self._clock = FairClock()
        self._sequence = 0
        self._wait_ids = 0
        self._promotions = Wakeups()
        self._expiries = Wakeups()
        self.policy = policy
        self.lanes: list[Lane] = []
        self.promoted_lanes: list[Lane] = []
        self._flows: list[FairFlow] = []
        self._promoted_flow = FairFlow(policy.promoted_share)
        self._by_groups: dict[tuple[int, Groups], Lane] = {}
        self._any_shared = False
        self.configure(policy)

    @property
    def promoted(self) -> Lane:
        """The promoted of a model with one group; else those of the first lane's groups."""
        return self.promoted_lanes[0]

    @property
    def all(self) -> list[Lane]:
        """The lanes by length, then the promoted."""
        return [*self.lanes, *self.promoted_lanes]

    @property
    def any_wait(self) -> bool:
        """Whether anything waits, in the lanes or aside of them."""
        return bool(self.jobs or self.aside or self.guests)

    def configure(self, policy: SchedulingPolicy) -> None:
        """Changes lanes, weights and order. What waits moves to the lane that is now its own (refused ones to its
        head); the promoted stay so."""
        waiting = sorted(self.jobs.values(), key=lambda job: job.sequence)
        total = sum(lane.weight for lane in policy.lanes)
        finishes = {self.policy.lanes[index].name: flow.finish for index, flow in enumerate(self._flows)}
        self.policy = policy
        self.lanes = []
        self._flows = [FairFlow((1.0 - policy.promoted_share) * lane.weight / total) for lane in policy.lanes]
        self._by_groups = {(_PROMOTED, lane.groups): lane for lane in self.promoted_lanes}
        for index, lane in enumerate(policy.lanes):
            self._flows[index].finish = finishes.get(lane.name, 0.0)
            for home in (index, _PROMOTED):
                self._lane_for(home, policy.groups.get(lane.name) or None)
        self._promoted_flow.weight = policy.promoted_share
        self.accounts.reweigh(self._tenant_weights)
        for one in self.promoted_lanes:
            one.reweigh(self._tenant_weights)
        self._promotions.clear()
        self._expiries.clear()
        for job in waiting:
            self.find_home(job)
            lane_now = self.lane_of(job)
            if job.lane is not lane_now:
                if job.promoted_s is not None and job.lane is not None:
                    job.lane.remove(job)
                self._push(job, lane_now)
            self._time(job)
        self._drop_promoted_lanes()

    def _drop_promoted_lanes(self) -> None:
        """Those of groups that serve no lane any more."""
        named = {self.policy.groups.get(lane.name) or None for lane in self.policy.lanes}
        self.promoted_lanes = [lane for lane in self.promoted_lanes if lane.count or lane.groups in named]
        self._by_groups = {(lane.home, lane.groups): lane for lane in self.all}
        self._note_sharing()

    @property
    def _tenant_weights(self) -> dict[str, float]:
        return {name: tenant.weight for name, tenant in self.policy.tenants.items()}

    def lane_of(self, job: Job) -> Lane:
        """Where the job waits, or would wait."""
        key = (job.home if job.promoted_s is None else _PROMOTED, job.groups)
        return self._by_groups.get(key) or self._lane_for(*key)

    def home_of(self, job: Job) -> Lane:
        """The lane of the job by its length, promoted or not."""
        return self._by_groups.get((job.home, job.groups)) or self._lane_for(job.home, job.groups)

    def _lane_for(self, home: int, groups: Groups) -> Lane:
        lane = self._by_groups.get((home, groups))
        if lane is None:
            if home == _PROMOTED:
                lane = Lane(PROMOTED, 0.0, False, self.accounts, _PROMOTED, groups, self._promoted_flow)
                self.promoted_lanes.append(lane)
            else:
                shortest = self.policy.order is Order.SHORTEST
                name = self.policy.lanes[home].name
                lane = Lane(name, 0.0, shortest, self.accounts, home, groups, self._flows[home])
                self.lanes.append(lane)
            lane.reweigh(self._tenant_weights)
            self._by_groups[home, groups] = lane
            self._note_sharing()
        return lane

    def _note_sharing(self) -> None:
        self._any_shared = len(self.lanes) > len(self.policy.lanes) or len(self.promoted_lanes) > 1

    def siblings_of(self, lane: Lane) -> list[Lane]:
        """The others with the same claim."""
        return [other for other in self.all if other.flow is lane.flow and other is not lane]

    def next_sequence(self) -> int:
        """The next number in order of arrival."""
        self._sequence += 1
        return self._sequence

    def enter(self, job: Job, first: bool = False) -> None:
        """A job waits: in its home, or, where it was promoted before, among the promoted. One whose replica refused it
        waits at the head, and so does one that is to be `first`."""
        self.jobs[job.request.request_id] = job
        self.largest_cost = max(self.largest_cost, job.cost)
        self.accounts.waits(job.request.tenant)
        self._push(job, self.lane_of(job), first)
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

    def waiting(self, request_id: str) -> Job | None:
        """The job of a request that waits, in a lane or aside of them."""
        guest = self.guests.get(request_id)
        return self.jobs.get(request_id) or self.aside.get(request_id) or (None if guest is None else guest.job)

    def take_out(self, job: Job) -> None:
        """A job that waits, in a lane or aside of them, goes without being served."""
        request_id = job.request.request_id
        if self.aside.pop(request_id, None) is None and self.guests.pop(request_id, None) is None:
            self.leave(job)

    def due(self, passed_over: list[Lane]) -> Lane | None:
        """The backlogged lane that is served next, of those not passed over already."""
        if self._any_shared:
            return self._due_of_groups(passed_over)
        best: Lane | None = None
        for lane in self.lanes:
            if lane.count and lane not in passed_over and (best is None or lane.flow.start < best.flow.start):
                best = lane
        promoted = self.promoted_lanes[0]
        if promoted.count and promoted not in passed_over and (best is None or promoted.flow.start <= best.flow.start):
            best = promoted
        return best

    def _due_of_groups(self, passed_over: list[Lane]) -> Lane | None:
        """...where several lanes have one claim: of those, the one in which a job waits longest."""
        waiting = [lane for lane in self.all if lane.count and lane not in passed_over]
        return min(waiting, key=lambda lane: (lane.flow.start, lane.home, _since(lane)), default=None)

    def wait_for(self, group: str) -> bool:
        """Whether something waits that the group may serve."""
        if not self.jobs:
            return False
        return any(lane.count and (lane.groups is None or group in lane.groups) for lane in self.all)

    def is_contested(self, groups: Groups) -> bool:
        """Whether a tenant within its share waits for one of these groups; without groups: always, since that with the
        smallest tag is."""
        if groups is None:
            return True
        for lane in self.all:
            if lane.count and (lane.groups is None or not set(groups).isdisjoint(lane.groups)):
                head = lane.head()
                if head is not None and not lane.is_over_share(head):
                    return True
        return False

    def serve(self, lane: Lane, job: Job, passed_over: list[Lane]) -> None:
        """The head of `lane` is placed; the lanes passed over for it keep a claim of at most one request."""
        lane.take(job)
        if job.attempt == 1:  # a refused job was charged the first time
            self.accounts.charge(job.request.tenant, job.cost)
            self._clock.charge(lane.flow, job.cost)
            for other in passed_over:
                self._clock.passed_over(other.flow, self.largest_cost)
        self._gone(job)

    def promote(self, now: float) -> None:
        """Moves the jobs that have waited long enough to the promoted."""
        if not self._promotions.is_due(now):
            return
        for job in self._promotions.due(now):
            assert job.lane is not None
            job.lane.remove(job)
            job.promoted_s = now
            self.newly_promoted.append(job)
            job.sequence = self.next_sequence()
            self._push(job, self.lane_of(job))

    def is_expired(self, now: float) -> bool:
        """Whether `expire` may find something."""
        return self._expiries.is_due(now)

    def expire(self, now: float) -> Iterator[Job]:
        """Takes out the jobs whose wait is given up, one at a time: what is not asked for stays."""
        for job in self._expiries.due(now):
            self.leave(job)
            yield job

    def next_wakeup(self) -> float | None:
        """When a promotion or the end of a wait comes next, or that of a guest's wait aside."""
        guests_s = min((one.until_s for one in self.guests.values()), default=None)
        return earlier(earlier(self._promotions.next_s(), self._expiries.next_s()), guests_s)

    def find_home(self, job: Job) -> None:
        """The lane of a job by what it is booked with, as the lanes are now."""
        policy = self.policy
        job.home = policy.lane_of(job.prefill_tokens + job.output_tokens * job.request.sequences)
        if policy.contexts:
            job.home, job.groups = policy.served(job.home, job.context_tokens)
        else:
            job.groups = None
        job.home_name = policy.lanes[job.home].name

    def _push(self, job: Job, lane: Lane, first: bool = False) -> None:
        if not lane.count and not (self._any_shared and any(other.count for other in self.siblings_of(lane))):
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
        self.accounts.gone(job.request.tenant)
        self._expiries.trim(len(self.jobs))
        self._promotions.trim(len(self.jobs))


def _since(lane: Lane) -> int:
    """When the job that has waited longest came, as its number in the order of arrival."""
    oldest = lane.oldest()
    return 0 if oldest is None else oldest.sequence


def earlier(one: float | None, other: float | None) -> float | None:
    """The earlier of two times; None is never."""
    if one is None or (other is not None and other < one):
        return other
    return one
