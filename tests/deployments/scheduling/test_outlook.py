"""The base forecasts of a wait, worked by hand for lanes whose work, rate and shares are known."""

import pytest

from deployments.scheduling import LanePolicy, Scheduler, SchedulingPolicy
from deployments.scheduling.eta import Outlook
from deployments.scheduling.group_rates import GroupRates
from deployments.scheduling.lane import Lane, WorkByKey
from deployments.scheduling.lanes import Lanes
from deployments.scheduling.learned_state import ServiceRate
from deployments.scheduling.outlook import Arrivals, Outlooks
from deployments.scheduling.request import Groups, Job
from tests.deployments.scheduling.world import make_request, make_scheduler

POLICY = SchedulingPolicy(
    lanes=(LanePolicy("short", 200, weight=3, max_wait_s=10), LanePolicy("long", None, weight=1, max_wait_s=40)),
    promoted_share=0.2,
)


class World:
    """Lanes with given work, a rate of 100 a second, and a start in `start_s` seconds."""

    def __init__(self, start_s: float = 0.0, rate: float | None = 100.0, short: float = 0.0) -> None:
        self.lanes = Lanes(POLICY)
        self.rate = ServiceRate()
        if rate is not None:
            self.rate.placed.run(True, 0.0)
            for tenth in range(1, 1_001):
                self.rate.placed.add(rate / 10, tenth / 10)
        self.start_s = start_s
        self.outlooks = Outlooks(self.lanes, GroupRates(self.rate), self)  # type: ignore[arg-type]
        self.fill(short)

    def wait_s(self, groups: Groups, now: float) -> float:
        """What `Starting` would say."""
        return self.start_s

    def any_ready(self, groups: Groups) -> bool:
        """There is a replica."""
        return True

    def fill(self, short: float = 0.0, long: float = 0.0, promoted: float = 0.0) -> None:
        """Work of the lanes, all with the key 0."""
        works: list[tuple[Lane, float]] = [*zip(self.lanes.lanes, (short, long), strict=True)]
        for lane, work in (*works, (self.lanes.promoted, promoted)):
            lane.work, lane.count, lane._by_key = work, int(work > 0), WorkByKey()
            lane._by_key.add(0.0, work)

    def of(self, home: int = 0, cost: float = 0.0, key: float = 1.0) -> Outlook:
        """The outlook of a job in the short lane."""
        return self.outlooks.of_lane(self.lanes.lanes[home], key, cost, 100.0)


def test_without_a_rate_the_start_is_all_that_is_known() -> None:
    assert World(rate=None).of() == Outlook(0.0)
    assert World(30.0, rate=None).of() == Outlook(30.0)


def test_in_its_turn_means_behind_the_lanes_own_and_what_others_are_served_meanwhile() -> None:
    world = World(short=600.0)
    assert world.of().turn_s == pytest.approx(6.0, rel=0.01)
    world.fill(short=600.0, long=10_000.0)
    assert world.of().turn_s == pytest.approx(8.0, rel=0.01), "the long lane gets a third of what the short one gets"
    world.fill(short=600.0, long=100.0)
    assert world.of().turn_s == pytest.approx(7.0, rel=0.01), "but not more than waits in it"
    world.fill(short=600.0, long=100.0, promoted=10_000.0)
    assert world.of().turn_s == pytest.approx(7.0 + 2.0, rel=0.01), "and the promoted 0.2 for 0.6"
    assert world.of(home=1).turn_s == pytest.approx(1.0 + 3.0 + 1.0, rel=0.01)


def test_what_has_a_larger_key_is_not_in_the_way() -> None:
    world = World(short=600.0)
    world.lanes.lanes[0]._by_key.add(9.0, 200.0)
    assert world.of(key=1.0).turn_s == pytest.approx(6.0, rel=0.01)
    assert world.of(key=10.0).turn_s == pytest.approx(8.0, rel=0.01)


def arriving(world: World, lane: str, span_s: float, per_s: float) -> None:
    """So much work a second has been coming to a lane for a long time."""
    arrivals = world.outlooks._arrivals[lane] = Arrivals(0.0)
    for tenth in range(1, 1_001):
        arrivals.add(span_s, per_s / 10, tenth / 10)


def test_what_will_overtake_it_is_in_the_way_for_as_long_as_it_overtakes() -> None:
    world = World(short=600.0)
    arriving(world, "short", 4.0, 50.0)
    assert world.of(key=110.0).turn_s == pytest.approx(6.0 + 0.5 * 6.0, rel=0.03), "whose keys are 6 s smaller"
    assert world.of(key=106.0).turn_s == pytest.approx(6.0 + 0.5 * 2.0, rel=0.03)
    assert world.of(key=103.0).turn_s == pytest.approx(6.0, rel=0.03), "none overtakes one whose own key is smaller"


def test_what_arrives_in_other_lanes_meanwhile_takes_its_share() -> None:
    world = World(short=600.0)
    arriving(world, "long", 4.0, 20.0)
    assert world.of().turn_s == pytest.approx(6.0 / (1 - 0.2), rel=0.05)
    arriving(world, "long", 4.0, 1_000.0)
    assert world.of().turn_s == pytest.approx(8.0, rel=0.03), "but no more than a third of what the short one gets"


def test_one_that_is_promoted_waits_behind_the_promoted() -> None:
    world = World(short=600.0)
    outlook = world.of(cost=50.0)
    assert outlook.promotion_s == 10.0
    assert outlook.promoted_s == pytest.approx(0.5, rel=0.01), "nobody else is promoted, and nothing arrives"
    world.outlooks.reload({"short", "long"})
    world.fill(promoted=2_000.0)
    outlook = world.of()
    assert outlook.promoted_s == pytest.approx(10.0, abs=1.0), "2,000 less what is served until then"
    assert (world.of(home=1).promotion_s, world.of(home=1).promoted_s) == (40.0, pytest.approx(0.0))


def waiting_in(world: World, name: str, promote_s: float, patience: float = 600.0) -> Job:
    """A job of the short lane with 1,000 of work, which would be promoted at `promote_s`."""
    job = Job(make_request(name, now=promote_s - 10.0, patience=patience), 1)
    job.cost = 1_000.0
    world.lanes.find_home(job)
    return job


def test_what_waits_will_crowd_the_promoted_unless_it_gives_up_before() -> None:
    world = World()
    world.outlooks.arrived(waiting_in(world, "hasty", 110.1, patience=9.0), 100.1)
    assert world.of().promoted_s == 0.0
    for number in range(4):
        world.outlooks.arrived(waiting_in(world, f"q{number}", 101.1), 91.1)
    crowded = World()
    for number in range(4):
        crowded.outlooks.arrived(waiting_in(crowded, f"q{number}", 101.1), 91.1)
    assert crowded.of().promoted_s > 10.0, "4,000 of work less what is served in nine seconds"


def test_what_arrives_beyond_the_rate_will_crowd_the_promoted() -> None:
    """The short lane is offered 200 a second and gets 100: the rest is promoted 10 s later, where the promoted get 0.2
    of 0.8, 25 a second."""
    world = World()
    job = Job(make_request("q"), 1)
    job.cost = 20.0
    for tenth in range(1_001):
        world.outlooks.arrived(job, tenth / 10)
    slice_s = 40 / 48
    assert world.of().promoted_s == pytest.approx((100.0 - 25.0) * slice_s / 25.0, rel=0.02), (
        "what the first slice leaves, in the last"
    )


def test_all_begins_when_there_is_a_replica() -> None:
    world = World(start_s=30.0)
    world.fill(short=600.0)
    assert world.of() == Outlook(pytest.approx(36.0, rel=0.01), 30.0, 0.0)


def test_a_job_is_forecast_by_its_own_lane_key_and_cost() -> None:
    scheduler: Scheduler = make_scheduler(0, POLICY)
    scheduler.submit(make_request("q", prompt=1_000, now=2.0, slo=9.0), 2.0)
    job = scheduler.lanes.jobs["q"]
    outlooks = scheduler.forecasts.outlooks
    assert outlooks.of(job, 5.0) == outlooks.of_lane(scheduler.lanes.lanes[1], job.key, job.cost, 5.0)
