"""The wait estimates that requests get. The lanes' forecasts learn from the outcome of each (`eta.py`), but for those
that an outage spoiled."""

import math

from deployments.scheduling.eta import LaneEta, Way
from deployments.scheduling.fleet import Fleet, Starting
from deployments.scheduling.lane import Lane
from deployments.scheduling.lanes import Lanes
from deployments.scheduling.learned_state import ServiceRate
from deployments.scheduling.outlook import Outlooks
from deployments.scheduling.request import Job


class Outage:
    """When no replica answers that should: what waits teach meanwhile is no measure of the lanes, and is not learned,
    or forgotten again.

    An outage begins when the last ready replica is lost or unresponsive, and ends when one is ready. One that hangs is
    found out only after a while, so the outage reaches back to the last sign of life: a first token, or the end of an
    answer. A replica that drains, or one that an operator keeps work off, makes no outage: that is somebody's plan.
    """

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._sign_s = -math.inf
        self._began_s: float | None = None
        self._over_s = -math.inf

    def sign(self, now: float) -> None:
        """A replica has answered."""
        self._sign_s = now

    def down(self) -> None:
        """A replica was lost, or is unresponsive."""
        if self._began_s is None and not self._fleet.any_ready:
            self._began_s = self._sign_s

    def up(self, now: float) -> float | None:
        """A replica came, or came back. Returns since when nothing counts that was learned; None where that ends no
        outage."""
        if self._began_s is None or not self._fleet.any_ready:
            return None
        began_s, self._began_s, self._over_s = self._began_s, None, now
        return began_s

    def spoils(self, arrived_s: float) -> bool:
        """Whether an outage has been a part of the wait of a request that arrived then and waits still."""
        return self._began_s is not None or arrived_s < self._over_s


class Forecasts:
    """Waits, by lane."""

    def __init__(self, lanes: Lanes, rate: ServiceRate, starting: Starting, outage: Outage) -> None:
        self.etas: dict[str, LaneEta] = {}
        self._lanes = lanes
        self._rate = rate
        self._starting = starting
        self._outage = outage
        self.outlooks = Outlooks(lanes, rate, starting)

    def reload(self, now: float) -> None:
        """The lanes are new. Of lanes that are gone only the estimates that they gave are kept: a job knows which lane
        gave its own."""
        names = {lane.name for lane in self._lanes.lanes}
        self.etas = {name: eta for name, eta in self.etas.items() if name in names}
        self.outlooks.reload(names, now)

    def wait_estimate(self, job: Job, now: float) -> tuple[float, float]:
        """The wait that a queued job may expect: p50 and p95, in seconds. Called before the job enters its lane."""
        job.eta = self._eta(job)
        self.outlooks.arrived(job, now)
        job.wait_estimate = job.eta.wait_estimate(self.outlooks.of(job, now))
        return job.wait_estimate.p50_s, job.wait_estimate.p95_s

    def stepped(self, now: float) -> None:
        """A step begins, or ended: whose latest start passed is known now."""
        self.outlooks.tick(now)
        for lane in self._lanes.lanes:
            if lane.turned_late:
                self._turned_late(lane, now)

    def _turned_late(self, lane: Lane, now: float) -> None:
        for job in lane.turned_late:
            self.outlooks.turned_late(job)
            if job.eta is None or job.wait_estimate is None or self._outage.spoils(job.request.arrived_s):
                continue
            if job.attempt == 0 and not job.came_late:
                job.came_late = True
                job.eta.came_late(job.wait_estimate, now)
        lane.turned_late.clear()

    def placed(self, job: Job, lane: str, was_late: bool, now: float) -> None:
        """A job was placed from `lane`: its estimate is compared with its wait."""
        if was_late:
            self.outlooks.placed_late(lane, job.cost, now)
        self.outlooks.promotions.left(job)
        if job.eta is None or job.wait_estimate is None or job.attempt != 1:
            return
        eta, wait_s = job.eta, now - job.request.arrived_s
        if self._outage.spoils(job.request.arrived_s):
            eta.spoiled()
            return
        if wait_s > job.wait_estimate.outlook.slack_s and not job.came_late:
            job.came_late = True
            eta.came_late(job.wait_estimate, now)
        way = Way.TIMELY if not job.came_late else Way.LATE if job.promoted_s is None else Way.PROMOTED
        eta.observe(job.wait_estimate, wait_s, way, now)

    def shown(self, home: int, now: float) -> tuple[float, float] | None:
        """The estimate that a request like the last one would get now in the lane of that index; None before the first
        estimate."""
        if not self._lanes.jobs and self._starting.any_open:
            return 0.0, 0.0
        eta = self.etas.get(self._lanes.policy.lanes[home].name)
        if eta is None or self._rate.per_s is None:
            return None
        reported = eta.predict(self.outlooks.of_lane(home, eta.slack_s, 0.0, now))
        return reported.p50_s, reported.p95_s

    def gave_up(self, job: Job, now: float) -> None:
        """A job leaves its lane unplaced."""
        self.outlooks.promotions.left(job)
        if job.eta is None or job.wait_estimate is None or job.attempt:
            return
        if self._outage.spoils(job.request.arrived_s):
            job.eta.spoiled()
        else:
            job.eta.gave_up(job.wait_estimate, now - job.request.arrived_s)

    def withdraw(self, job: Job) -> None:
        """A job waits for something else than its lane from now on: its estimate no longer counts."""
        self.outlooks.promotions.left(job)
        if job.eta is not None and job.wait_estimate is not None and job.attempt == 0:
            job.eta.spoiled()
        job.eta = job.wait_estimate = None

    def recovered(self, since_s: float) -> None:
        """An outage is over that began then: nothing counts that was learned in it."""
        for eta in self.etas.values():
            eta.forget(since_s)

    def expected(self, job: Job, now: float) -> tuple[float, float]:
        """The wait that a job might expect that is not let in: p50 and p95, in seconds."""
        expected = self._eta(job).predict(self.outlooks.of(job, now))
        return expected.p50_s, expected.p95_s

    def _eta(self, job: Job) -> LaneEta:
        eta = self.etas.get(job.home_name)
        if eta is None:
            eta = self.etas[job.home_name] = LaneEta()
        return eta
