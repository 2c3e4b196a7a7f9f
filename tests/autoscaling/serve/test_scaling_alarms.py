"""What is wrong around a model's scaling is an alarm, and the number stays or is what can be had."""

import time
from pathlib import Path

import pytest

from deployments.cell.act import Act, ActKind
from deployments.starts.phases import Phase
from deployments.starts.start import CellStarts, ReplicaStart
from tests.autoscaling.serve.scaling_harness import Run


def test_another_hand_is_seen_and_undone(run: Run) -> None:
    harness = run(ready=2, policy="fixed", count=2)
    harness.turn()
    harness.target = 6
    harness.handover.tick(6)
    state = harness.turn()
    assert (state.requested, state.alarms) == (2, ("foreign_write",))
    assert harness.turn().alarms == ()


def test_what_cannot_be_read_is_an_alarm_and_no_change(run: Run) -> None:
    harness = run(ready=2)
    harness.turn()
    harness.cell.visible = False
    state = harness.turn()
    assert (state.requested, state.reason, state.alarms) == (2, "stale", ("stale",))
    harness.cell.book.take(Act(time.time(), ActKind.PIN, "m", "ada", replicas=3, until_unix_s=time.time() + 600))
    state = harness.turn()
    assert (state.requested, state.reason, state.alarms) == (3, "pinned", ("stale",)), "an order does not hide it"
    harness.cell.visible = True
    assert harness.turn().alarms == ()


def test_more_than_there_is_room_for_is_not_asked(run: Run) -> None:
    harness = run(ready=1, policy="fixed", count=1, minimum=1, maximum=None)
    harness.turn()
    harness.cell.book.take(Act(time.time(), ActKind.PIN, "m", "ada", replicas=50, until_unix_s=time.time() + 600))
    state = harness.turn()
    assert (state.requested, state.reason, state.alarms) == (8, "unschedulable", ("unschedulable",))


@pytest.mark.parametrize("period_s", [0.2, 600.0])
def test_a_spec_that_cannot_be_followed_is_told_at_once_and_leaves_all_as_it_was(run: Run, period_s: float) -> None:
    """However seldom the policy is asked."""
    harness = run(ready=2, policy="fixed", count=2, period_s=period_s)
    harness.turn()
    harness.apply(policy="magic")
    state = harness.turn()
    assert (state.requested, state.alarms) == (2, ("bad_spec",))
    harness.apply(policy="fixed", count=3)
    state = harness.turn()
    assert (state.requested, state.alarms) == (3, ())


def test_costs_that_are_missing_are_an_alarm_and_the_policy_does_without(run: Run) -> None:
    harness = run(ready=1, costs="/nowhere.json")
    assert harness.turn().alarms == ("bad_spec",)


def test_what_runs_is_never_taken_away_for_want_of_room(run: Run) -> None:
    harness = run(ready=12, policy="fixed", count=12, minimum=12, maximum=None)
    assert (harness.turn().requested, harness.cell.states[-1].alarms) == (12, ())


def test_a_log_that_cannot_be_written_stops_nothing(run: Run, tmp_path: Path) -> None:
    (tmp_path / "logs").write_text("no folder")
    harness = run(folder=tmp_path / "logs")
    state = harness.turn()
    assert (state.requested, state.alarms) == (1, ("no_log",))


@pytest.mark.whole
def test_a_replica_that_fetches_for_longer_than_the_limit_is_awaited(run: Run) -> None:
    """Two are asked for. One of them fetches on its node; nobody hears of the other, which has none."""
    harness = run(ready=1, policy="fixed", count=3, minimum=3, maximum=None, unschedulable_s=1.0, retry_s=60.0)
    start = ReplicaStart("r2", "m", "node", time.time(), Phase.FETCH, time.time(), {Phase.FETCH: 1.0})
    harness.cell.starts = CellStarts(running=(start,))
    states = [harness.turn() for _ in range(12)]
    assert [state.requested for state in states[:3]] == [3, 3, 3]
    assert (states[-1].requested, states[-1].alarms) == (2, ("unschedulable",))
    alone = run(ready=1, policy="fixed", count=2, unschedulable_s=1.0, retry_s=60.0)
    alone.cell.starts = CellStarts(running=(start,))
    states = [alone.turn() for _ in range(12)]
    assert {state.requested for state in states} == {2}
    assert not any("unschedulable" in state.alarms for state in states)
