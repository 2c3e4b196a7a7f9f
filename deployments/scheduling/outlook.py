"""The base forecasts of a request's wait, from the work that waits and the measured rates. `eta.py` learns how far they
are off.

Backlogged lanes share by weight: the fluid limit of fair queueing. In virtual time v each backlogged lane g has had
weight(g) * v of work placed, until it is empty; a lane's own work is done at v = own / weight (`work_before`).

Before a job that arrives come those of its lane with a smaller key (`Lane.work_before`), those that overtake it while
it waits, and what arrives meanwhile in other lanes, up to their shares. Whatever has a span (key less time of arrival)
that is d seconds smaller overtakes it, if it comes within d. So the wait T is the fixed point of

    T = work_before(ahead + sum over spans of  arriving work a second * min(T, d),
                    others + their arriving work a second * T) / rate

Who is promoted before a request, and how long it then waits among the promoted: what waits is known with the time of
its promotion, and the rates at which work arrives at each lane are measured. So the lanes are run forward as fluids, in
slices of time, until the request is promoted (`Promotions`). In each slice the service rate is shared by weight between
what is offered: what arrives at each lane and waits in it, and what waits among the promoted. What a lane gets beyond
what arrives serves what is promoted next; what arrives beyond what it gets waits, and is promoted after the lane's
`max_wait_s`:

    promoted work at the end of a slice = that at its beginning + what is promoted in it - what the promoted get
    wait after the promotion            = (promoted work then + the request's own) / what the promoted get then

That sees a wave of promotions as long before it comes as the wait for a promotion is. Outcomes tell of it only when it
is there.
"""

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from deployments.scheduling.eta import Outlook
from deployments.scheduling.fleet import Fleet
from deployments.scheduling.group_rates import GroupRates
from deployments.scheduling.lane import Lane
from deployments.scheduling.lanes import Lanes
from deployments.scheduling.learned_state import Meter
from deployments.scheduling.request import Groups, Job


def work_before(own_ahead: float, own_weight: float, others: Iterable[tuple[float, float]]) -> float:
    """Work placed in all until `own_ahead` of this lane is placed. `others`: (waiting work, weight) of each other
    lane."""
    done_at = own_ahead / own_weight
    placed = own_ahead
    for work, weight in others:
        maximum = weight * done_at
        placed += work if work < maximum else maximum
    return placed


def fair_rates(rate: float, flows: Sequence[tuple[float, float]]) -> list[float]:
    """What each flow gets of a service rate: of (rate at which work is offered, weight) each.

    Max-min fairness: who is offered less than its share takes what it is offered, and the rest is shared anew.
    """
    given = [0.0] * len(flows)
    weight = sum(share for _, share in flows)
    for index in sorted(range(len(flows)), key=lambda index: flows[index][0] / flows[index][1]):
        offered, share = flows[index]
        given[index] = min(offered, rate * share / weight)
        rate -= given[index]
        weight -= share
    return given


_SLICES = 48
_ROUNDS = 4
"""So often, at most, the wait is computed from the one before: it grows to the fixed point, of which outcomes teach the
rest."""
_CLOSE = 0.02
_FADE = 0.99
_MIN_SPAN_S = 1e-3


_KEEP_S = 0.5


class Offered(NamedTuple):
    """A lane, by its index: the work a second that arrives, its weight, its wait for a promotion."""

    home: int
    work_per_s: float
    weight: float
    max_wait_s: float


class Queue(NamedTuple):
    """The promoted at some time: the work that waits, and how much of it is served a second."""

    work: float
    work_per_s: float


class Promotions:
    """What waits, by lane and the time at which it will be promoted. `longest_s`: the longest wait for a promotion."""

    def __init__(self, longest_s: float) -> None:
        self._slice_s = longest_s / _SLICES
        self._work: dict[int, dict[int, float]] = {}
        self._slice_of: dict[Job, tuple[int, int]] = {}
        self._known: dict[float, tuple[float, Queue]] = {}

    def add(self, job: Job, promote_s: float) -> None:
        """The job waits: it will be promoted then, unless it is served or leaves before."""
        number = int(promote_s / self._slice_s)
        self._slice_of[job] = job.home, number
        work = self._work.setdefault(job.home, {})
        work[number] = work.get(number, 0.0) + job.cost

    def left(self, job: Job) -> None:
        """A job left, placed or not, whether it was known or not."""
        home, number = self._slice_of.pop(job, (0, -1))
        work = self._work.get(home, {})
        if number in work:
            work[number] -= job.cost

    def known(self, after_s: float, now: float) -> Queue | None:
        """What `queue` found for that time less than half a second ago; None: it is to be asked."""
        known = self._known.get(after_s)
        return known[1] if known is not None and 0 <= now - known[0] < _KEEP_S else None

    def queue(
        self, after_s: float, rate: float, lanes: Sequence[Offered], promoted: Queue, now: float, ask_only: bool
    ) -> Queue:
        """The promoted `after_s` from now, at a service rate. `promoted`: what waits there now, and (as its
        `work_per_s`) their weight.

        `ask_only`: not kept for `known`, since looking may change no decision.
        """
        queue = self._outcome(after_s, rate, lanes, promoted, now)
        if not ask_only:
            self._known[after_s] = now, queue
        return queue

    def _outcome(self, after_s: float, rate: float, lanes: Sequence[Offered], promoted: Queue, now: float) -> Queue:
        slice_s, (waiting, weight) = self._slice_s, promoted
        first = int(now / slice_s)
        for work in self._work.values():
            for past in [number for number in work if number < first]:
                del work[past]
        coming = [dict(self._work.get(lane.home, ())) for lane in lanes]
        behind = [sum(work.values()) for work in coming]
        for number in range(first, int((now + after_s) / slice_s) + 1):
            for index, work in enumerate(coming):
                due = work.pop(number, 0.0)
                behind[index] -= due
                waiting += due
            offers = [(lane.work_per_s + behind[index] / slice_s, lane.weight) for index, lane in enumerate(lanes)]
            *served, taken = fair_rates(rate, [*offers, (waiting / slice_s, weight)])
            waiting -= taken * slice_s
            for index, (lane, got) in enumerate(zip(lanes, served, strict=True)):
                left = (lane.work_per_s - got) * slice_s
                behind[index] += left
                due_number, work = number + int(lane.max_wait_s / slice_s), coming[index]
                if left > 0:
                    work[due_number] = work.get(due_number, 0.0) + left
                for soonest in sorted(work) if left < 0 else ():
                    used = min(-left, work[soonest])
                    work[soonest] -= used
                    left += used
                    if left >= 0:
                        break
        return Queue(
            waiting, fair_rates(rate, [*((lane.work_per_s, lane.weight) for lane in lanes), (rate, weight)])[-1]
        )


class Arrivals:
    """What arrives at a lane to wait: the work a second, and the parts of it by span, each half of an octave wide."""

    def __init__(self, now: float) -> None:
        self._meter = Meter()
        self._meter.run(True, now)
        self._by_span: dict[int, float] = {}

    @property
    def per_s(self) -> float:
        """Work a second."""
        return self._meter.per_s or 0.0

    def add(self, span_s: float, work: float, now: float) -> None:
        """A job comes to wait. It counts more than those before it."""
        self._meter.add(work, now)
        for number in self._by_span:
            self._by_span[number] *= _FADE
        number = round(2 * math.log2(max(_MIN_SPAN_S, span_s)))
        self._by_span[number] = self._by_span.get(number, 0.0) + work

    def overtaking(self, span_s: float) -> list[tuple[float, float]]:
        """What overtakes a job of that span: for so many seconds, so much work a second."""
        per_s = self.per_s / sum(self._by_span.values())
        earlier = [(span_s - 2.0 ** (number / 2), work * per_s) for number, work in self._by_span.items()]
        return [one for one in earlier if one[0] > 0]


class Starting:
    """When the next replica is expected, by group. `doubt`: something changed, so that what waits may wait in vain.

    While there is no replica the lanes are a waiting room: a request waits as long as the start of the next replica
    fits its patience (`expires_s`). When that will be is a fact from outside. While nobody knows, everybody waits: the
    first request is what makes a replica start.
    """

    def __init__(self, fleet: Fleet) -> None:
        self.ready_at_s: dict[str, float] = {}
        self.doubt = False
        self._fleet = fleet

    def expect(self, ready_at_s: float | None, group: str) -> None:
        """The group's next replica should be ready then; None: nobody knows of any."""
        if ready_at_s is None:
            self.ready_at_s.pop(group, None)
        else:
            self.ready_at_s[group] = ready_at_s
        self.doubt = True

    @property
    def any_open(self) -> bool:
        """Whether whoever comes now would find room somewhere."""
        return self._fleet.any_open

    def any_ready(self, groups: Groups) -> bool:
        """Whether a replica of those groups takes work, now or once it has room: else the lanes are a waiting room."""
        return self._fleet.any_ready if groups is None else self._fleet.any_ready_of(groups)

    def wait_s(self, groups: Groups, now: float, unknown_s: float = 0.0) -> float:
        """How long every request of those groups must wait for a replica to be there; 0 where one is, `unknown_s` where
        nobody knows."""
        if not self.ready_at_s and not unknown_s:
            return 0.0
        due = [at_s for name, at_s in self.ready_at_s.items() if groups is None or name in groups]
        wait_s = min(due, default=now) - now
        if wait_s <= 0.0:
            wait_s = unknown_s
        return wait_s if wait_s and self._fleet.is_deserted_by(groups) else 0.0


class Outlooks:
    """Of all lanes of a model."""

    def __init__(self, lanes: Lanes, rates: GroupRates, starting: Starting) -> None:
        self._lanes = lanes
        self._rates = rates
        self._starting = starting
        self._promotions: dict[Groups, Promotions] = {}
        self._arrivals: dict[str, Arrivals] = {}

    def of(self, job: Job, now: float) -> Outlook:
        """The job's outlook, before it enters its lane."""
        lane = self._lanes.home_of(job)
        job.key = lane.key_of(job)
        return self.of_lane(lane, job.key, job.cost, now, ask_only=False)

    def of_lane(self, lane: Lane, key: float, cost: float, now: float, ask_only: bool = True) -> Outlook:
        """The outlook of a job of that key and cost in that lane.

        In its turn: the lanes drain by their shares, and those of its lane with smaller keys come first. Promoted:
        behind those that are promoted before it. Where there is no replica, all of that begins when there is.
        """
        rate, start_s = self._rates.of(lane.groups), self._starting.wait_s(lane.groups, now)
        if rate is None:
            return Outlook(start_s)
        promotion_s = self._lanes.policy.lanes[lane.home].max_wait_s
        turn_s = self._turn_s(lane, key, rate, start_s, promotion_s, now)
        promotions = self.promotions_of(lane.groups)
        queue = promotions.known(promotion_s, now) or self._promoted_then(lane.groups, promotion_s, rate, now, ask_only)
        return Outlook(turn_s, max(start_s, promotion_s), (queue.work + cost) / queue.work_per_s)

    def _turn_s(self, lane: Lane, key: float, rate: float, start_s: float, until_s: float, now: float) -> float:
        """The wait in its turn: the fixed point that the module's docstring states, as far as `until_s`."""
        ahead, others = self._ahead(lane, lane.work_before(key))
        arrivals = self._arrivals.get(lane.key)
        overtaking = arrivals.overtaking(key - now) if lane.shortest and arrivals is not None else []
        turn_s = start_s
        for _ in range(_ROUNDS):
            own = [per_s * (turn_s if turn_s < for_s else for_s) for for_s, per_s in overtaking]  # `min` is slow
            waiting = [(work + per_s * turn_s, weight) for work, per_s, weight in others]
            before_s, turn_s = turn_s, start_s + work_before(ahead + sum(own), lane.flow.weight, waiting) / rate
            if turn_s >= until_s or turn_s - before_s <= _CLOSE * turn_s:
                break
        return turn_s

    def _ahead(self, lane: Lane, own: float) -> tuple[float, list[tuple[float, float, float]]]:
        """The work that is placed before what comes to that lane now, in its turn; and of each other lane the work,
        what arrives a second, and the weight, as far as they concern the same groups (`group_rates.py`). What waits
        under the same claim, but for other groups, came before."""
        ahead: float = own
        others: list[tuple[float, float, float]] = []
        for other in self._lanes.all:
            if other is lane:
                continue
            part = self._rates.shared(lane.groups, other.groups)
            if other.flow is lane.flow:
                ahead += other.work * part
            else:
                others.append((other.work * part, self._arriving(other) * part, other.flow.weight * part))
        return ahead, others

    def arrived(self, job: Job, now: float) -> None:
        """A job comes to wait, whose key is known."""
        name = self._lanes.home_of(job).key
        arrivals = self._arrivals.get(name)
        if arrivals is None:
            arrivals = self._arrivals[name] = Arrivals(now)
        arrivals.add(job.key - now, job.cost, now)
        self._expect_promotion(job)

    def _arriving(self, lane: Lane) -> float:
        arrivals = self._arrivals.get(lane.key)
        return 0.0 if arrivals is None else arrivals.per_s

    def _expect_promotion(self, job: Job) -> None:
        promote_s = job.request.arrived_s + self._lanes.policy.lanes[job.home].max_wait_s
        if job.promoted_s is None and promote_s < job.request.expires_s:
            self.promotions_of(job.groups).add(job, promote_s)

    def _promoted_then(self, groups: Groups, after_s: float, rate: float, now: float, ask_only: bool) -> Queue:
        lanes, offered = self._lanes, []
        for lane in lanes.lanes:
            part = self._rates.shared(groups, lane.groups)
            if part:
                max_wait_s = lanes.policy.lanes[lane.home].max_wait_s
                offered.append(Offered(lane.home, self._arriving(lane) * part, lane.flow.weight * part, max_wait_s))
        work = sum(one.work * self._rates.shared(groups, one.groups) for one in lanes.promoted_lanes)
        promoted = Queue(work, lanes.promoted.flow.weight)
        return self.promotions_of(groups).queue(after_s, rate, offered, promoted, now, ask_only)

    def promotions_of(self, groups: Groups) -> Promotions:
        """Those that wait for these groups."""
        promotions = self._promotions.get(groups)
        if promotions is None:
            promotions = self._promotions[groups] = self._new_promotions()
        return promotions

    def _new_promotions(self) -> Promotions:
        return Promotions(max(lane.max_wait_s for lane in self._lanes.policy.lanes))

    def reload(self, names: set[str]) -> None:
        """The lanes are new, with these keys."""
        self._arrivals = {name: arrivals for name, arrivals in self._arrivals.items() if name in names}
        self._promotions.clear()
        for job in self._lanes.jobs.values():
            self._expect_promotion(job)
