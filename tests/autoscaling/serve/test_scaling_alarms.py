"""What is wrong around a model's scaling is an alarm, and the number stays or is what can be had."""

import time
from collections.abc import Callable
from pathlib import Path

from deployments.cell.act import Act, ActKind
from tests.autoscaling.serve.played import Played


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


def test_a_spec_that_cannot_be_followed_is_told_at_once_however_seldom_the_law_is_asked(play: Callable[..., Played]) -> None:
    played = play(ready=2, policy="fixed", count=2, period_s=600.0)
    played.turn()
    played.apply(policy="magic")
    assert played.turn().alarms == ("bad_spec",)


def test_costs_that_are_missing_are_an_alarm_and_the_law_does_without(play: Callable[..., Played]) -> None:
    played = play(ready=1, costs="/nowhere.json")
    assert played.turn().alarms == ("bad_spec",)


def test_what_runs_is_never_taken_away_for_want_of_room(play: Callable[..., Played]) -> None:
    played = play(ready=12, policy="fixed", count=12, most=None)
    assert (played.turn().requested, played.cell.states[-1].alarms) == (12, ())


def test_a_log_that_cannot_be_written_stops_nothing(play: Callable[..., Played], tmp_path: Path) -> None:
    (tmp_path / "logs").write_text("no folder")
    played = play(folder=tmp_path / "logs")
    state = played.turn()
    assert (state.requested, state.alarms) == (1, ("no_log",))
