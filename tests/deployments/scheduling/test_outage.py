"""What waits teach while no replica answers is no measure of the lanes: it is forgotten as soon as one answers
again."""

import pytest

from deployments.lane_stats import LaneStats
from deployments.scheduling import Capacity, Ending, LanePolicy, Scheduler, SchedulingPolicy
from tests.deployments.scheduling.world import make_request

ONE = Capacity(sequences=1, ahead=0, kv_tokens=4_000, step_tokens=300, prefill_steps=2.0)
POLICY = SchedulingPolicy(
    lanes=(LanePolicy("short", 200, max_wait_s=10), LanePolicy("long", None, max_wait_s=40)), decode_weight=1.0
)
SERVED_S = 0.4


class Cell:
    """Replicas of one seat, each of which serves a request in `SERVED_S`; `at_once` requests come each `every_s`."""

    def __init__(self) -> None:
        self.scheduler = Scheduler(POLICY)
        self.now = 0.0
        self.came = 0
        self.answers = True
        self._running: list[tuple[float, object]] = []

    def up(self, name: str = "r0") -> None:
        self.scheduler.replica_up(name, ONE, self.now)
        self.answers = True
        self._step()

    def lose(self, name: str = "r0") -> None:
        self.scheduler.replica_lost(name, self.now)
        self._running.clear()
        self._step()

    def run(self, for_s: float, every_s: float | None, at_once: int = 1, patience_s: float = 600.0) -> None:
        """Time passes in tenths of a second. Without `every_s` nothing comes."""
        for tenth in range(round(for_s * 10)):
            self.now = round(self.now + 0.1, 1)
            if every_s is not None and tenth % round(every_s * 10) == 0:
                for _ in range(at_once):
                    self.came += 1
                    self.scheduler.submit(
                        make_request(f"q{self.came}", 50, 20, self.now, patience=patience_s, slo=2.0), self.now
                    )
            self._end()
            self._step()

    def _end(self) -> None:
        for ends_s, lease in list(self._running):
            if self.answers and ends_s <= self.now:
                self._running.remove((ends_s, lease))
                self.scheduler.first_token(lease, self.now)  # type: ignore[arg-type]
                self.scheduler.release(lease, Ending.FINISHED, None, self.now)  # type: ignore[arg-type]

    def _step(self) -> None:
        for placement in self.scheduler.step(self.now).placements:
            self._running.append((self.now + SERVED_S, placement.lease))

    def short(self) -> LaneStats:
        """The short lane, when all that waited has been served."""
        lane = self.scheduler.snapshot(self.now).lanes[0]
        assert lane.waiting == 0
        return lane

    def reported_p95_s(self) -> float:
        """What the next of two that come at once would be told."""
        self.scheduler.submit(make_request("first", 50, 20, self.now, slo=2.0), self.now)
        self.scheduler.step(self.now)
        reported = self.scheduler.submit(make_request("second", 50, 20, self.now, slo=2.0), self.now).eta_s
        assert reported is not None
        return reported[1]


def outage(
    before_s: float, for_s: float, every_s: float, at_once: int = 1, patience_s: float = 600.0
) -> tuple[Cell, LaneStats, LaneStats]:
    """A cell that has had an outage, and its short lane before it and a minute after it."""
    cell = Cell()
    cell.up()
    cell.run(before_s, every_s=1.0, at_once=2)
    before = cell.short()
    cell.lose()
    cell.run(for_s, every_s, at_once, patience_s)
    cell.up("r1")
    cell.run(60.0, every_s=None)
    return cell, before, cell.short()


def test_after_an_outage_an_empty_lane_promises_what_it_promised_before() -> None:
    cell, before, after = outage(20.0, 130.0, every_s=10.0, at_once=2)
    assert before.eta_s is not None
    assert after.eta_s is not None
    assert after.eta_s[1] <= max(before.eta_s[1], 0.5)
    assert cell.reported_p95_s() <= 3 * SERVED_S


@pytest.mark.parametrize("patience_s", [600.0, 20.0], ids=["they wait", "they give up"])
def test_promises_that_an_outage_broke_are_no_misses(patience_s: float) -> None:
    _, before, after = outage(60.0, 100.0, every_s=4.0, patience_s=patience_s)
    assert (after.estimated, after.covered) == (before.estimated, before.covered)
    assert after.censored - before.censored == 25


@pytest.mark.parametrize("unresponsive", [True, False], ids=["unresponsive", "lost"])
def test_what_a_hung_replica_taught_before_it_was_found_out_is_forgotten(unresponsive: bool) -> None:
    cell = Cell()
    cell.up()
    cell.run(120.0, every_s=0.5)
    cell.answers = False
    cell.run(15.0, every_s=0.5)  # they wait behind what hangs, and are found to be late
    if unresponsive:
        cell.scheduler.replica_unresponsive("r0", cell.now)
    cell.lose()
    cell.run(5.0, every_s=None)
    cell.up("r1")
    cell.run(60.0, every_s=None)
    assert cell.reported_p95_s() <= 3 * SERVED_S


def test_a_lane_in_which_nothing_waits_shows_no_wait() -> None:
    """After plain overload, too: whoever comes now is placed at once."""
    cell = Cell()
    cell.up()
    cell.run(60.0, every_s=0.6, at_once=2)
    cell.run(120.0, every_s=None)
    assert cell.short().eta_s == (0.0, 0.0)
    cell.scheduler.submit(make_request("runs", 50, 20, cell.now), cell.now)
    cell.scheduler.step(cell.now)
    shown = cell.short().eta_s
    assert shown is not None
    assert shown[1] > 0, "the only seat is taken now"


def test_overload_is_learned_from_as_ever() -> None:
    """A replica that drains, and one that comes, are no outage."""
    cell = Cell()
    cell.up()
    cell.run(30.0, every_s=0.6, at_once=2)
    before = cell.scheduler.snapshot(cell.now).lanes[0]
    cell.up("r1")
    cell.scheduler.replica_draining("r0", cell.now)
    cell.run(30.0, every_s=0.6, at_once=2)
    after = cell.scheduler.snapshot(cell.now).lanes[0]
    assert after.estimated > before.estimated
    assert after.censored == before.censored
