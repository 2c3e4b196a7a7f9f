"""Who will be promoted before a request, and how long it will then wait among the promoted.

Late requests are known with the time of their promotion, and the rates at which work arrives at each lane are measured. So the lanes can be played
forward as fluids, in slices of time, until the request is promoted. In each slice the service rate is shared by weight between what is offered:
what arrives at each lane, and what waits among the promoted. What a lane is offered and does not get is late, and is promoted after the lane's
`max_wait_s`:

    promoted work at the end of a slice = that at its beginning + what is promoted in it - what the promoted get
    wait after the promotion            = (promoted work then + the request's own) / what the promoted get then

That sees a wave of promotions as long before it comes as the wait for a promotion is. Outcomes tell of it only when it is there.
"""

from collections.abc import Sequence
from typing import NamedTuple

from deployments.scheduling.drain import fair_rates
from deployments.scheduling.request import Job

_SLICES = 48
_KEEP_S = 0.5


class Offered(NamedTuple):
    """A lane: the work a second that arrives, its weight, its wait for a promotion."""

    work_per_s: float
    weight: float
    max_wait_s: float


class Queue(NamedTuple):
    """The promoted at some time: the work that waits, and how much of it is served a second."""

    work: float
    work_per_s: float


class Promotions:
    """The work of late requests by the time at which they will be promoted. `longest_s`: the longest wait for a promotion."""

    def __init__(self, longest_s: float) -> None:
        self._slice_s = longest_s / _SLICES
        self._work: dict[int, float] = {}
        self._slice_of: dict[Job, int] = {}
        self._known: dict[float, tuple[float, Queue]] = {}

    def add(self, job: Job, promote_s: float) -> None:
        """The job can no longer meet its deadline: it will be promoted then, unless it is served late or leaves before."""
        if job not in self._slice_of:
            number = self._slice_of[job] = int(promote_s / self._slice_s)
            self._work[number] = self._work.get(number, 0.0) + job.cost

    def left(self, job: Job) -> None:
        """A job left, placed or not, whether it was late or not."""
        number = self._slice_of.pop(job, None)
        if number in self._work:
            self._work[number] -= job.cost

    def known(self, after_s: float, now: float) -> Queue | None:
        """What `queue` found for that time less than half a second ago; None: it is to be asked."""
        known = self._known.get(after_s)
        return known[1] if known is not None and 0 <= now - known[0] < _KEEP_S else None

    def queue(self, after_s: float, rate: float, lanes: Sequence[Offered], promoted: Queue, now: float, ask_only: bool) -> Queue:
        """The promoted `after_s` from now, at a service rate. `promoted`: what waits there now, and (as its `work_per_s`) their weight.

        `ask_only`: not kept for `known`, since looking may change no decision.
        """
        queue = self._played(after_s, rate, lanes, promoted, now)
        if not ask_only:
            self._known[after_s] = now, queue
        return queue

    def _played(self, after_s: float, rate: float, lanes: Sequence[Offered], promoted: Queue, now: float) -> Queue:
        slice_s, (waiting, weight) = self._slice_s, promoted
        first = int(now / slice_s)
        for past in [number for number in self._work if number < first]:
            del self._work[past]
        coming = dict(self._work)
        for number in range(first, int((now + after_s) / slice_s) + 1):
            waiting += coming.get(number, 0.0)
            *served, taken = fair_rates(rate, [*((lane.work_per_s, lane.weight) for lane in lanes), (waiting / slice_s, weight)])
            waiting -= taken * slice_s
            for lane, got in zip(lanes, served, strict=True):
                if got < lane.work_per_s:
                    due = number + int(lane.max_wait_s / slice_s)
                    coming[due] = coming.get(due, 0.0) + (lane.work_per_s - got) * slice_s
        return Queue(waiting, fair_rates(rate, [*((lane.work_per_s, lane.weight) for lane in lanes), (rate, weight)])[-1])
