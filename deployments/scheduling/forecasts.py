"""The wait estimates that requests get. The lanes' forecasts learn from the outcome of each (`eta.py`), but for those
that an outage spoiled."""

import math

from deployments.scheduling.eta import LaneEta, Way
from deployments.scheduling.fleet import Fleet
from deployments.scheduling.group_rates import GroupRates
from deployments.scheduling.lane import Lane
from deployments.scheduling.lanes import Lanes
from deployments.scheduling.outlook import Outlooks, Starting
from deployments.scheduling.request import Job


class Outage:
    """When no replica answers that should, by group: what waits for those groups alone teaches meanwhile is no measure
    of the lanes, and is not learned, or forgotten again.

    An outage begins when the last ready replica of a group is lost or unresponsive, and ends when one is ready. One
    that hangs is found out only after a while, so the outage reaches back to the last sign of life: a first token, or
    the end of an answer. A replica that drains, or one that an operator keeps work off, makes no outage: that is
    somebody's plan.
    """

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._sign_s: dict[str, float] = {}
        self._began_s: dict[str, float] = {}
        self._over_s: dict[str, float] = {}

    def sign(self, group: str, now: float) -> None:
        """A replica of the group has answered."""
        self._sign_s[group] = now

    def down(self, group: str) -> None:
        """A replica of the group was lost, or is unresponsive."""
        if group not in self._began_s and not self._fleet.any_ready_of((group,)):
            self._began_s[group] = self._sign_s.get(group, -math.inf)

    def up(self, group: str, now: float) -> float | None:
        """A replica of the group came, or came back. Returns since when nothing counts that was learned; None where
        that ends no outage."""
        if group not in self._began_s or not self._fleet.any_ready_of((group,)):
            return None
        self._over_s[group] = now
        return self._began_s.pop(group)

    def spoils(self, job: Job) -> bool:
        """Whether an outage of all that could serve it has been a part of the wait of a job that waits still."""
        if not self._began_s and not self._over_s:
            return False
        groups, arrived_s = job.groups or self._over_s.keys() | self._began_s.keys(), job.request.arrived_s
        return all(name in self._began_s or arrived_s < self._over_s.get(name, -math.inf) for name in groups)

    def is_of_all(self, groups: tuple[str, ...], group: str) -> bool:
        """Whether `group`, whose outage ends, was the last of these that was out."""
        return group in groups and all(name == group or name in self._began_s for name in groups)


class Forecasts:
    """Waits, by lane."""

    def __init__(self, lanes: Lanes, rates: GroupRates, starting: Starting, outage: Outage) -> None:
        self.etas: dict[str, LaneEta] = {}
        """By the key of the lane."""
        self._lanes = lanes
        self._rates = rates
        self._starting = starting
        self._outage = outage
        self.outlooks = Outlooks(lanes, rates, starting)

    def reload(self) -> None:
        """The lanes are new. Of lanes that are gone only the estimates that they gave are kept: a job knows which lane
        gave its own."""
        names = {lane.key for lane in self._lanes.lanes}
        self.etas = {name: eta for name, eta in self.etas.items() if name in names}
        self.outlooks.reload(names)

    def wait_estimate(self, job: Job, now: float) -> tuple[float, float]:
        """The wait that a queued job may expect: p50 and p95, in seconds. Called before the job enters its lane."""
        job.eta = self._eta(job)
        outlook = self.outlooks.of(job, now)
        self.outlooks.arrived(job, now)
        job.eta.span_s = job.key - now
        job.wait_estimate = job.eta.wait_estimate(outlook)
        return job.wait_estimate.p50_s, job.wait_estimate.p95_s

    def promoted(self, now: float) -> None:
        """What was promoted since the last call is known now."""
        for job in self._lanes.newly_promoted:
            if (
                job.eta is not None
                and job.wait_estimate is not None
                and not job.attempt
                and not self._outage.spoils(job)
            ):
                job.eta.promoted(job.wait_estimate, now)
        self._lanes.newly_promoted.clear()

    def placed(self, job: Job, now: float) -> None:
        """A job was placed: its estimate is compared with its wait."""
        self.outlooks.promotions_of(job.groups).left(job)
        if job.eta is None or job.wait_estimate is None or job.attempt != 1:
            return
        eta, wait_s = job.eta, now - job.request.arrived_s
        if self._outage.spoils(job):
            eta.spoiled()
            return
        eta.observe(job.wait_estimate, wait_s, Way.TURN if job.promoted_s is None else Way.PROMOTED, now)

    def shown(self, lane: Lane, now: float) -> tuple[float, float] | None:
        """The estimate that a request like the last one would get now in that lane; None before the first estimate."""
        if not self._lanes.jobs and self._starting.any_open:
            return 0.0, 0.0
        eta = self.etas.get(lane.key)
        if eta is None or self._rates.of(lane.groups) is None:
            return None
        reported = eta.predict(self.outlooks.of_lane(lane, now + eta.span_s, 0.0, now))
        return reported.p50_s, reported.p95_s

    def fresh_s(self, job: Job, now: float) -> float | None:
        """The wait (95th percentile) that a request like the last one would get now in the job's lane; None: not
        known."""
        shown = self.shown(self._lanes.home_of(job), now)
        return None if shown is None else shown[1]

    def remaining_s(self, job: Job, now: float, fresh_s: float | None = None) -> float | None:
        """What a job that waits still has to wait (95th percentile), of what it was expected to. Where that is used up,
        nothing more is known of it than that it comes before whoever arrives now, who would wait for `fresh_s`."""
        if job.wait_estimate is not None and not job.attempt:
            left_s = job.wait_estimate.p95_s - (now - job.request.arrived_s)
            if left_s > 0:
                return left_s
        return self.fresh_s(job, now) if fresh_s is None else fresh_s

    def gave_up(self, job: Job, now: float) -> None:
        """A job leaves its lane unplaced."""
        self.outlooks.promotions_of(job.groups).left(job)
        if job.eta is None or job.wait_estimate is None or job.attempt:
            return
        if self._outage.spoils(job):
            job.eta.spoiled()
        else:
            job.eta.gave_up(job.wait_estimate, now - job.request.arrived_s)

    def withdraw(self, job: Job) -> None:
        """A job waits for something else than its lane from now on: its estimate no longer counts."""
        self.outlooks.promotions_of(job.groups).left(job)
        if job.eta is not None and job.wait_estimate is not None and job.attempt == 0:
            job.eta.spoiled()
        job.eta = job.wait_estimate = None

    def recovered(self, since_s: float, group: str) -> None:
        """An outage of the group is over that began then: nothing counts that was learned in it by lanes that no other
        group served meanwhile."""
        for lane in self._lanes.lanes:
            eta = self.etas.get(lane.key)
            if eta is not None and (lane.groups is None or self._outage.is_of_all(lane.groups, group)):
                eta.forget(since_s)

    def expected(self, job: Job, now: float) -> tuple[float, float]:
        """The wait that a job might expect that is not let in: p50 and p95, in seconds."""
        expected = self._eta(job).predict(self.outlooks.of(job, now))
        return expected.p50_s, expected.p95_s

    def _eta(self, job: Job) -> LaneEta:
        key = self._lanes.home_of(job).key
        eta = self.etas.get(key)
        if eta is None:
            eta = self.etas[key] = LaneEta()
        return eta
