"""The turns of one model's scaling: what is decided, and that it is handed over."""

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from autoscaling.laws.law import Concern, Motive
from autoscaling.log.reader import lines_of, log_files, replay
from autoscaling.scaler.decision import Decision, Limit
from autoscaling.serve.scaling import Clock, alarms_of
from deployments.cell.act import Act, ActKind
from tests.autoscaling.serve.played import Played


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


def test_a_cordoned_replica_is_not_one_that_starts(play: Callable[..., Played]) -> None:
    played = play(ready=2, policy="fixed", count=2)
    played.turn()
    played.cell.scheduler.replica_cordoned("r0", time.monotonic())
    state = played.turn()
    assert (state.applied, state.ready, state.starting) == (2, 1, 0)


@pytest.mark.whole
def test_a_long_period_keeps_no_operator_and_no_apply_waiting(play: Callable[..., Played], tmp_path: Path) -> None:
    given = {"policy": "fixed", "period_s": 600.0}
    played = play(ready=2, count=2, **given)
    played.turn()
    assert played.scaling.turn_s == 1.0
    played.turn()
    assert len(played.cell.states) == 1, "nothing is new, and it is not time"
    until_unix_s = time.time() + 2.5
    played.cell.book.take(Act(time.time(), ActKind.PIN, "m", "ada", replicas=5, until_unix_s=until_unix_s))
    assert (played.turn().reason, played.target) == ("pinned", 5)
    while time.time() < until_unix_s:
        played.turn()
    assert played.turn().requested == 2
    played.apply(count=3, **given)
    assert (played.turn().requested, played.target) == (3, 3)
    played.target = played.handover.tick(7)
    assert (played.turn().requested, played.cell.states[-1].alarms) == (3, ("foreign_write",))
    found = replay(lines_of(log_files(tmp_path, "m")))
    assert (found.decisions, found.difference) == (len(played.cell.states), None)
    played.apply(count=3, **{**given, "period_s": 0.2})
    played.turn()
    assert played.scaling.turn_s == 0.2
    told = len(played.cell.states)
    played.turn()
    assert len(played.cell.states) == told + 1


@pytest.mark.whole
def test_books_that_could_not_be_read_are_not_waited_for_a_whole_period(play: Callable[..., Played]) -> None:
    played = play(period_s=600.0)
    played.cell.visible = False
    assert played.turn().reason == "stale"
    played.cell.book.take(Act(time.time(), ActKind.PIN, "m", "ada", replicas=1, until_unix_s=time.time() + 600))
    assert played.turn().reason == "pinned", "which hides that the books are stale"
    told = len(played.cell.states)
    played.cell.visible = True
    played.turn()
    assert len(played.cell.states) == told + 1
    played.turn()
    assert len(played.cell.states) == told + 1


@pytest.mark.parametrize("concern", list(Concern))
def test_what_no_number_mends_is_an_alarm_beside_any_other(concern: Concern) -> None:
    decision = Decision(0.0, 2, 2, 2, 2, Motive.STEADY, None, {}, concern=concern)
    assert alarms_of(decision) == ("out_of_reach",)
    assert alarms_of(Decision(0.0, 2, 2, 2, 3, Motive.DEMAND, Limit.UNSCHEDULABLE, {}, concern=concern)) == ("unschedulable", "out_of_reach")
    assert alarms_of(Decision(0.0, 2, 2, 2, 2, Motive.STEADY, None, {})) == ()


def test_it_goes_on_from_an_earlier_clock() -> None:
    unix_ns = time.time_ns() - 7 * 10**9
    ns, now = Clock(10**18, unix_ns).now()
    assert ns - 10**18 >= 7 * 10**9
    assert now >= unix_ns + 7 * 10**9


def test_it_never_runs_backwards_even_where_the_time_of_day_did() -> None:
    clock = Clock(10**18, time.time_ns() + 10**12)
    assert clock.now()[0] > 10**18
    assert clock.now()[0] <= clock.now()[0]
