"""The base forecasts of a wait, worked by hand for lanes whose work, rate and shares are known."""

import math

import pytest

from deployments.scheduling import LanePolicy, Scheduler, SchedulingPolicy
from deployments.scheduling.eta import Outlook
from deployments.scheduling.group_rates import GroupRates
from deployments.scheduling.lane import Lane
from deployments.scheduling.lanes import Lanes
from deployments.scheduling.learned_state import ServiceRate
from deployments.scheduling.outlook import Outlooks
from deployments.scheduling.request import Groups, Job
from tests.deployments.scheduling.world import make_request, make_scheduler

POLICY = SchedulingPolicy(
    lanes=(LanePolicy("short", 200, weight=3, max_wait_s=10), LanePolicy("long", None, weight=1, max_wait_s=40)),
    promoted_share=0.2,
)
NEVER = math.inf


class World:
    """Lanes with given work, a rate of 100 a second, and a start in `start_s` seconds."""

    def __init__(self, start_s: float = 0.0, rate: float | None = 100.0) -> None:
        self.lanes = Lanes(POLICY)
        self.rate = ServiceRate()
        if rate is not None:
            self.rate.placed.run(True, 0.0)
            for tenth in range(1, 1_001):
                self.rate.placed.add(rate / 10, tenth / 10)
        self.start_s = start_s
        self.outlooks = Outlooks(self.lanes, GroupRates(self.rate), self)  # type: ignore[arg-type]

    def wait_s(self, groups: Groups, now: float) -> float:
        """What `Starting` would say."""
        return self.start_s

    def any_ready(self, groups: Groups) -> bool:
        """There is a replica."""
        return True

    def fill(self, short: float = 0.0, long: float = 0.0, promoted: float = 0.0, late: float = 0.0) -> None:
        """Work of the lanes; `late`: of it in the short one, of those that can no longer meet their deadline."""
        works: list[tuple[Lane, float]] = [
            (self.lanes.lanes[0], short),
            (self.lanes.lanes[1], long),
            (self.lanes.promoted, promoted),
        ]
        for lane, work in works:
            lane.work, lane.count = work, int(work > 0)
        self.lanes.lanes[0].late_work = late

    def of(self, slack_s: float, home: int = 0, cost: float = 0.0) -> Outlook:
        """The outlook of a job in the short lane."""
        return self.outlooks.of_lane(self.lanes.lanes[home], slack_s, cost, 100.0)


def test_without_a_rate_the_start_is_all_that_is_known() -> None:
    assert World(rate=None).of(5.0) == Outlook(0.0, 5.0, 1.0)
    assert World(rate=None).of(0.5) == Outlook(0.0, 0.5, 0.5)
    assert World(30.0, rate=None).of(5.0) == Outlook(30.0, 5.0, 30.0)
    assert World(30.0, rate=None).of(0.5) == Outlook(30.0, 0.5, 30.0)


def test_in_time_means_behind_the_lanes_own_and_what_others_are_served_meanwhile() -> None:
    world = World()
    world.fill(short=600.0)
    assert world.of(NEVER).timely_s == pytest.approx(6.0, rel=0.01)
    world.fill(short=600.0, long=10_000.0)
    assert world.of(NEVER).timely_s == pytest.approx(8.0, rel=0.01), (
        "the long lane gets a third of what the short one gets"
    )
    world.fill(short=600.0, long=100.0)
    assert world.of(NEVER).timely_s == pytest.approx(7.0, rel=0.01), "but not more than waits in it"
    world.fill(short=600.0, long=100.0, promoted=10_000.0)
    assert world.of(NEVER).timely_s == pytest.approx(7.0 + 2.0, rel=0.01), "and the promoted 0.2 for 0.6"
    assert world.of(NEVER, home=1).timely_s == pytest.approx(1.0 + 3.0 + 1.0, rel=0.01)


def test_without_a_latest_start_nothing_is_ever_late() -> None:
    world = World(start_s=30.0)
    world.fill(short=600.0, late=100.0)
    outlook = world.of(NEVER)
    assert outlook.timely_s == outlook.late_s == pytest.approx(35.0, rel=0.01)
    assert outlook.slack_s == NEVER


def test_the_late_are_not_in_the_way_of_who_can_be_in_time() -> None:
    world = World()
    world.fill(short=600.0, late=200.0)
    assert world.of(NEVER).timely_s == pytest.approx(4.0, rel=0.01)


def test_a_late_one_is_promoted_and_waits_behind_the_promoted() -> None:
    world = World()
    world.fill(short=600.0, late=600.0)
    outlook = world.of(3.0, cost=50.0)
    assert (outlook.late_s, outlook.promotion_s) == (10.0, 10.0)
    assert outlook.promoted_s == pytest.approx(0.5, rel=0.01), "nobody else is promoted, and nothing arrives"
    world.outlooks.reload({"short", "long"}, 100.0)
    world.fill(promoted=2_000.0)
    outlook = world.of(3.0)
    assert outlook.promoted_s == pytest.approx(10.0, abs=1.0), "2,000 less what is served until then"
    assert (world.of(3.0, home=1).promotion_s, world.of(3.0, home=1).promoted_s) == (40.0, pytest.approx(0.0))


def test_where_late_ones_are_served_their_own_rate_speaks_if_that_is_sooner() -> None:
    world = World()
    world.fill(short=600.0, late=200.0)
    world.outlooks.tick(0.0)
    for second in range(1, 101):
        world.outlooks.placed_late("short", 50.0, float(second))
    assert world.of(3.0, cost=100.0).late_s == pytest.approx(3.0 + 300.0 / 50.0, rel=0.03)
    world.fill(short=600.0, late=550.0)
    assert world.of(3.0, cost=100.0).late_s == pytest.approx(10.0), "else the promotion"
    assert world.of(20.0, cost=100.0).late_s == 20.0, "and never before its latest start"


def late_in(world: World, name: str, promote_s: float, patience: float = 600.0) -> Job:
    """A job of the short lane that can no longer meet its deadline, with 1,000 of work, which would be promoted at
    `promote_s`."""
    job = Job(make_request(name, now=promote_s - 10.0, patience=patience), 1)
    job.cost, job.late = 1_000.0, True
    return job


def test_who_turned_late_will_crowd_the_promoted_unless_it_left_or_gives_up_before() -> None:
    world = World()
    hasty = late_in(world, "hasty", 110.1, patience=9.0)
    gone = late_in(world, "gone", 110.1)
    gone.late = False
    for job in (hasty, gone):
        world.outlooks.turned_late(job)
    assert world.of(3.0).promoted_s == 0.0
    world.outlooks.turned_late(late_in(world, "stays", 110.1))
    assert world.of(3.0).promoted_s == pytest.approx((1_000.0 - 100.0 * 40 / 48) / 100.0, rel=0.01), (
        "less what is served in the last slice"
    )


def test_what_arrives_beyond_the_rate_will_crowd_the_promoted() -> None:
    """The short lane is offered 200 a second and gets 100: the rest is promoted 10 s later, where the promoted get 0.2
    of 0.8, 25 a second."""
    world = World()
    job = Job(make_request("q"), 1)
    job.cost = 20.0
    for tenth in range(1_001):
        world.outlooks.arrived(job, tenth / 10)
    slice_s = 40 / 48
    assert world.of(3.0).promoted_s == pytest.approx((100.0 - 25.0) * slice_s / 25.0, rel=0.02), (
        "what the first slice leaves, in the last"
    )


def test_only_time_in_which_late_ones_wait_counts_for_their_rate() -> None:
    world = World()
    world.fill(short=600.0, late=200.0)
    world.outlooks.tick(0.0)
    for second in range(1, 11):
        world.outlooks.placed_late("short", 50.0, float(second))
    world.fill(short=600.0)
    world.outlooks.tick(10.0)
    world.outlooks.placed_late("short", 1e9, 20.0)
    world.fill(short=600.0, late=200.0)
    world.outlooks.tick(90.0)
    assert world.of(3.0).late_s == pytest.approx(3.0 + 200.0 / 50.0, rel=0.05)
    assert [lane.late_waits for lane in world.lanes.lanes] == [True, False]


def test_all_begins_when_there_is_a_replica() -> None:
    world = World(start_s=30.0)
    world.fill(short=600.0, late=200.0)
    assert world.of(60.0) == Outlook(pytest.approx(34.0, rel=0.01), 60.0, 60.0, 60.0, 0.0)
    assert world.of(3.0).promotion_s == 30.0
    assert world.of(3.0).late_s == pytest.approx(30.0 + 10.0)


def test_a_job_is_forecast_by_its_own_lane_slack_and_cost() -> None:
    scheduler: Scheduler = make_scheduler(0, POLICY)
    scheduler.submit(make_request("q", prompt=1_000, now=2.0, slo=9.0), 2.0)
    job = scheduler.lanes.jobs["q"]
    outlooks = scheduler.forecasts.outlooks
    assert outlooks.of(job, 5.0) == outlooks.of_lane(scheduler.lanes.lanes[1], 6.0, job.cost, 5.0)
    assert outlooks.of(job, 50.0).slack_s == 0.0
