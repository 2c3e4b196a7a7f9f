"""The base forecasts of a request's wait, from the work that waits and the measured rates. `eta.py` learns how far they are off."""

import math

from deployments.scheduling.drain import work_before
from deployments.scheduling.eta import Outlook
from deployments.scheduling.lanes import Lanes
from deployments.scheduling.promotions import Offered, Promotions, Queue
from deployments.scheduling.rate import Meter, ServiceRate
from deployments.scheduling.request import Job
from deployments.scheduling.starting import Starting


class Outlooks:
    """Of all lanes of a model."""

    def __init__(self, lanes: Lanes, rate: ServiceRate, starting: Starting) -> None:
        self._lanes = lanes
        self._rate = rate
        self._starting = starting
        self.late_rates: dict[str, Meter] = {}
        """How fast late ones are placed, by the name of their lane."""
        self.promotions = self._new_promotions()
        self._arrivals: dict[str, Meter] = {}

    def of(self, job: Job, now: float) -> Outlook:
        """The job's outlook, before it enters its lane."""
        return self.of_lane(job.home, max(0.0, job.latest_start_s - now), job.cost, now, ask_only=False)

    def of_lane(self, home: int, slack_s: float, cost: float, now: float, ask_only: bool = True) -> Outlook:
        """The outlook of a job of that cost in the lane of that index, `slack_s` before its latest start.

        In time: the lanes drain by their shares, and those of its lane that can still meet their deadline come first. Late: behind the late ones of
        its lane, which are served as fast as late ones were of late (while others keep coming in time, hardly at all), but at most until it is
        promoted. Promoted: behind those that are promoted before it. Where there is no replica, all of that begins when there is.
        """
        rate, start_s = self._rate.per_s, self._starting.wait_s(now)
        if rate is None:
            return Outlook(start_s, slack_s, max(start_s, min(slack_s, 1.0)))
        lanes, lane = self._lanes, self._lanes.lanes[home]
        others = [(other.work, other.flow.weight) for other in lanes.all if other is not lane]
        timely_s = start_s + work_before(max(0.0, lane.work - lane.late_work), lane.flow.weight, others) / rate
        if slack_s == math.inf:
            return Outlook(timely_s, slack_s, timely_s)
        promotion_s = lanes.policy.lanes[home].max_wait_s
        late_rate = self._late_rate(lane.name).per_s
        late_s = start_s + (promotion_s if not late_rate else min(promotion_s, slack_s + (lane.late_work + cost) / late_rate))
        queue = self.promotions.known(promotion_s, now) or self._promoted_then(promotion_s, rate, now, ask_only)
        promoted_s = (queue.work + cost) / queue.work_per_s
        return Outlook(timely_s, slack_s, max(slack_s, late_s), max(slack_s, start_s, promotion_s), promoted_s)

    def arrived(self, job: Job, now: float) -> None:
        """A job comes to wait."""
        self._arrival_rate(self._lanes.policy.lanes[job.home].name, now).add(job.cost, now)

    def _promoted_then(self, after_s: float, rate: float, now: float, ask_only: bool) -> Queue:
        lanes, arrivals = self._lanes, self._arrivals
        offered = []
        for lane, policy in zip(lanes.lanes, lanes.policy.lanes, strict=True):
            meter = arrivals.get(lane.name)
            offered.append(Offered((meter.per_s or 0.0) if meter is not None else 0.0, lane.flow.weight, policy.max_wait_s))
        return self.promotions.queue(after_s, rate, offered, Queue(lanes.promoted.work, lanes.promoted.flow.weight), now, ask_only)

    def _new_promotions(self) -> Promotions:
        return Promotions(max(lane.max_wait_s for lane in self._lanes.policy.lanes))

    def reload(self, names: set[str], now: float) -> None:
        """The lanes are new, with these names: no late one is known to wait in any."""
        self.late_rates = {name: meter for name, meter in self.late_rates.items() if name in names}
        self._arrivals = {name: meter for name, meter in self._arrivals.items() if name in names}
        self.promotions = self._new_promotions()
        for meter in self.late_rates.values():
            meter.run(False, now)

    def tick(self, now: float) -> None:
        """Time in which late ones wait, and a replica is there, counts for their rate."""
        any_ready = self._starting.any_ready
        for lane in self._lanes.lanes:
            waits = any_ready and lane.late_work > 0
            if waits is not lane.late_waits:
                lane.late_waits = waits
                self._late_rate(lane.name).run(waits, now)

    def turned_late(self, job: Job) -> None:
        """The job was found to be late; it may have left since, or have been promoted."""
        promote_s = job.request.arrived_s + self._lanes.policy.lanes[job.home].max_wait_s
        if job.late and promote_s < job.request.expires_s:
            self.promotions.add(job, promote_s)

    def placed_late(self, lane: str, cost: float, now: float) -> None:
        """A late one was placed from its own lane."""
        self._late_rate(lane).add(cost, now)

    def _late_rate(self, lane: str) -> Meter:
        meter = self.late_rates.get(lane)
        if meter is None:
            meter = self.late_rates[lane] = Meter()
        return meter

    def _arrival_rate(self, lane: str, now: float) -> Meter:
        meter = self._arrivals.get(lane)
        if meter is None:
            meter = self._arrivals[lane] = Meter()
            meter.run(True, now)
        return meter
