"""The turns of one model's scaling: with the production scheduler as the cell that it looks at, Serve's part played by a handover that obeys."""

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from autoscaling.log.files import lines_of, log_files
from autoscaling.log.replay import replay
from autoscaling.serve.facts import Facts
from autoscaling.serve.handover import Handover
from autoscaling.serve.room import Node
from autoscaling.serve.scaling import ModelScaling
from autoscaling.signals.forecaster import Forecaster
from autoscaling.signals.signals import Forecast, Signals
from cluster.spec import ClusterSpec
from deployments.controls.act import Act, ActKind
from deployments.controls.orders import OrderBook
from deployments.listing import Listing
from deployments.scaling.books import Books, read_books
from deployments.scaling.state import ScalingState
from deployments.scheduling import Capacity, Ending, Request, Scheduler
from deployments.scheduling.from_spec import policy_of
from tests.autoscaling.setups import spec_of
from tests.autoscaling.test_from_spec import COSTS


class Cell:
    """Stands for `autoscaling.serve.cell.Cell`: a real scheduler, a real order book, and no Ray in between."""

    def __init__(self, spec: ClusterSpec) -> None:
        self.scheduler = Scheduler(policy_of(spec))
        self.book = OrderBook()
        self.spec_json: str | None = None
        self.states: list[ScalingState] = []
        self.rollbacks: list[str] = []
        self.visible = True
        self.closed = False
        self.listing: Listing | None = None
        self.books: Books | None = None
        self.nodes = (Node("a", {"CPU": 64.0, "GPU": 8.0, "accelerator_type:H100": 1.0}),)
        self.age_s = 0.0
        self._requests = 0

    def look(self, latency_span_s: float) -> None:
        self.listing = Listing(1, (), self.spec_json, orders=self.book.orders(time.time()))
        if self.visible:
            snapshot = self.scheduler.snapshot(time.monotonic())
            self.books = read_books(Books("m", 1, 0.0, snapshot, {}).encode())
        self.age_s = 0.0 if self.visible else 99.0

    def publish(self, state: ScalingState) -> None:
        self.states.append(state)

    def spec(self) -> bytes:
        return (self.spec_json or "").encode()

    def roll_back(self, why: str) -> None:
        self.rollbacks.append(why)

    def close(self) -> None:
        self.closed = True

    def replicas(self, number: int) -> None:
        """So many are ready."""
        for index in range(number):
            self.scheduler.replica_up(f"r{index}", Capacity(32, 8, 200_000, 2048, 2), time.monotonic())

    def burst(self, count: int) -> None:
        """So many requests arrive, and wait where there is no room."""
        for _ in range(count):
            self._requests += 1
            now = time.monotonic()
            self.scheduler.submit(Request(f"q{self._requests}", 2_000, 200, now, now + 1.0, now + 600.0), now)
        self.scheduler.step(time.monotonic())

    def answer_late(self) -> None:
        """What runs gets its first token long after its promise, and ends."""
        now = time.monotonic()
        for lease, _ in list(self.scheduler.leases.values()):
            self.scheduler.first_token(lease, lease.request.deadline_s + 60.0)
            self.scheduler.release(lease, Ending.FINISHED, None, now)
        self.scheduler.step(now)


class Played:
    """One model's scaling, turn by turn."""

    def __init__(self, folder: Path, ready: int, forecaster: Forecaster | None = None, **given: Any) -> None:
        self.spec = spec_of(**{"period_s": 0.2, **given})
        self.cell = Cell(self.spec)
        self.cell.replicas(ready)
        self.handover = Handover()
        self.target = self.handover.tick(ready)
        facts = Facts(self.spec.model_dump_json(), "m", "here")
        self.scaling = ModelScaling(facts, self.cell, self.handover, folder, forecaster)  # type: ignore[arg-type]

    def turn(self) -> ScalingState:
        """After the time in which it should come."""
        if self.cell.states:
            time.sleep(self.scaling.period_s)
        self.scaling.turn()
        for _ in range(3):
            self.target = self.handover.tick(self.target)
        return self.cell.states[-1]

    def apply(self, **given: Any) -> None:
        self.cell.spec_json = spec_of(**{"period_s": 0.2, **given}).model_dump_json()


@pytest.fixture
def play(tmp_path: Path) -> Iterator[Callable[..., Played]]:
    all_played: list[Played] = []

    def make(ready: int = 1, folder: Path = tmp_path, **given: Any) -> Played:
        all_played.append(Played(folder, ready, **given))
        return all_played[-1]

    yield make
    for one in all_played:
        one.scaling.close()


def test_a_burst_is_decided_on_at_the_next_turn(play: Callable[..., Played], tmp_path: Path) -> None:
    played = play()
    assert played.turn().requested == 1
    played.cell.burst(200)
    state = played.turn()
    assert (state.requested > 1, state.reason, played.target) == (True, "backlog", state.requested)
    assert state.start_up_eta_s is not None
    assert played.turn().applied == state.requested
    found = replay(lines_of(log_files(tmp_path, "m")))
    assert (found.decisions, found.changes, found.difference) == (3, 1, None)


def test_from_zero_the_first_request_wakes_one(play: Callable[..., Played]) -> None:
    played = play(ready=0)
    assert played.turn().requested == 0
    played.cell.burst(1)
    state = played.turn()
    assert (state.requested, state.reason, played.target) == (1, "wake", 1)


def test_a_fixed_count_is_held_and_changes_live(play: Callable[..., Played]) -> None:
    played = play(ready=2, policy="fixed", count=2)
    assert [played.turn().requested for _ in range(2)] == [2, 2]
    played.apply(policy="fixed", count=4)
    assert (played.turn().requested, played.target) == (4, 4)


def test_operators_are_followed_at_once(play: Callable[..., Played]) -> None:
    played = play(ready=2, policy="fixed", count=2)
    played.turn()
    played.cell.book.take(Act(time.time(), ActKind.PIN, "m", "ada", replicas=5, until_unix_s=time.time() + 600))
    state = played.turn()
    assert (state.requested, state.reason, played.target) == (5, "pinned", 5)
    played.cell.book.take(Act(time.time(), ActKind.RELEASE, "m", "ada"))
    assert played.turn().requested == 2


def test_another_hand_is_seen_and_undone(play: Callable[..., Played]) -> None:
    played = play(ready=2, policy="fixed", count=2)
    played.turn()
    played.target = 6
    played.handover.tick(6)
    state = played.turn()
    assert (state.requested, state.alarms) == (2, ("foreign_write",))
    assert played.turn().alarms == ()


def test_what_cannot_be_read_is_an_alarm_and_no_change(play: Callable[..., Played]) -> None:
    played = play(ready=2)
    played.turn()
    played.cell.visible = False
    state = played.turn()
    assert (state.requested, state.reason, state.alarms) == (2, "stale", ("stale",))
    played.cell.visible = True
    assert played.turn().alarms == ()


def test_more_than_there_is_room_for_is_not_asked(play: Callable[..., Played]) -> None:
    played = play(ready=1, policy="fixed", count=1, most=None)
    played.turn()
    played.cell.book.take(Act(time.time(), ActKind.PIN, "m", "ada", replicas=50, until_unix_s=time.time() + 600))
    state = played.turn()
    assert (state.requested, state.reason, state.alarms) == (8, "unschedulable", ("unschedulable",))


def test_a_spec_that_cannot_be_followed_leaves_all_as_it_was(play: Callable[..., Played]) -> None:
    played = play(ready=2, policy="fixed", count=2)
    played.turn()
    played.apply(policy="magic")
    state = played.turn()
    assert (state.requested, state.alarms) == (2, ("bad_spec",))
    played.apply(policy="fixed", count=3)
    state = played.turn()
    assert (state.requested, state.alarms) == (3, ())


def test_costs_that_are_missing_are_an_alarm_and_the_law_does_without(play: Callable[..., Played]) -> None:
    played = play(ready=1, costs="/nowhere.json")
    assert played.turn().alarms == ("bad_spec",)


def test_a_restart_goes_on_where_the_log_ends(play: Callable[..., Played], tmp_path: Path) -> None:
    first = play()
    first.turn()
    first.cell.burst(50)
    for _ in range(5):
        first.turn()
    first.scaling.close()
    learned = first.scaling._pair.scaler.law
    again = play(ready=first.target)
    state = again.scaling._pair.scaler.law
    assert vars(state._demand) == vars(learned._demand)  # type: ignore[attr-defined]
    again.turn()
    files = log_files(tmp_path, "m")
    assert len(files) == 2
    assert replay(lines_of(files)).difference is None
    seconds = [json.loads(line)[0] for line in lines_of(files) if line.startswith("[")]
    assert seconds == sorted(seconds)


def test_a_promotion_that_burns_is_taken_back_in_the_spec(play: Callable[..., Played]) -> None:
    given = {"count": 2, "shadow": {"policy": "backlog"}, "rollback": {"within_s": 60, "span_s": 1, "burn": 1}}
    played = play(ready=2, policy="backlog", **{**given, "shadow": {"policy": "fixed"}})
    played.turn()
    played.apply(policy="fixed", **given)
    played.turn()
    played.cell.burst(200)
    deadline = time.monotonic() + 60
    while not played.cell.rollbacks:
        assert time.monotonic() < deadline
        played.cell.answer_late()
        played.turn()
    assert "times as fast as the SLO allows" in played.cell.rollbacks[0]
    assert "rolled_back" in played.cell.states[-1].alarms
    played.apply(policy="backlog", **{**given, "shadow": {"policy": "fixed"}})
    assert played.turn().alarms == ()


class Foretold:
    """Expects always the same."""

    seen = 0

    def look(self, signals: Signals) -> None:
        self.seen += 1

    def forecast(self, unix_s: float) -> Forecast | None:
        return Forecast(unix_s, 3_600.0, (1e6,), (0.0,))


def test_a_forecast_is_an_input_and_stands_in_the_log(play: Callable[..., Played], tmp_path: Path) -> None:
    forecaster = Foretold()
    played = play(ready=1, forecaster=forecaster, most=4, costs=str(COSTS))
    played.cell.burst(60)
    for _ in range(3):
        played.turn()
    assert forecaster.seen == 3
    assert replay(lines_of(log_files(tmp_path, "m"))).difference is None
    assert "1000000.0" in log_files(tmp_path, "m")[0].read_text()


def test_a_log_that_cannot_be_written_stops_nothing(play: Callable[..., Played], tmp_path: Path) -> None:
    (tmp_path / "logs").write_text("no folder")
    played = play(folder=tmp_path / "logs")
    state = played.turn()
    assert (state.requested, state.alarms) == (1, ("no_log",))
