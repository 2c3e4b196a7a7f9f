"""The turns of one model's scaling: what is decided, and that it is handed over."""

import time
from collections.abc import Callable
from pathlib import Path

from autoscaling.log.files import lines_of, log_files
from autoscaling.log.replay import replay
from deployments.controls.act import Act, ActKind
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
