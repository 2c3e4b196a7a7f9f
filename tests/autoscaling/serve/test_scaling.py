"""The turns of one model's scaling: what is decided, and that it is handed over."""

import time
from pathlib import Path

import pytest

from autoscaling.log import inputs_of
from autoscaling.policies.policy import Concern, PolicyReason
from autoscaling.scaler.decision import Limit, ScalingDecision
from autoscaling.serve.scaling import ScalingClock, alarms_of
from deployments.cell.act import Act, ActKind
from deployments.decisions import Input
from tests.autoscaling.serve.scaling_harness import Run
from tests.autoscaling.setups import entries_of, replayed


def test_a_burst_is_decided_on_at_the_next_turn(run: Run, tmp_path: Path) -> None:
    harness = run()
    assert harness.turn().requested == 1
    harness.cell.burst(200)
    state = harness.turn()
    assert (state.requested > 1, state.reason, harness.target) == (True, "backlog", state.requested)
    assert state.start_up_eta_s is not None
    assert harness.turn().applied == state.requested
    found = replayed(entries_of(tmp_path))
    assert (found.inputs, found.counted, found.difference) == (3, 1, None)


def test_what_the_owners_page_says_is_decided_on(run: Run, tmp_path: Path) -> None:
    harness = run()
    harness.cell.late_s = 0.5
    harness.cell.page = {"epoch": 7, "age_s": 0.25, "attainment": {"interactive": 0.95}, "peers_spare": 1.25}
    harness.turn()
    last = entries_of(tmp_path)[-1]
    assert isinstance(last, Input)
    signals = inputs_of(last).signals
    assert (signals.epoch, signals.age_s, signals.peers_spare) == (7, 0.75, 1.25)
    assert signals.attainment == {"interactive": 0.95}


def test_from_zero_the_first_request_wakes_one(run: Run) -> None:
    harness = run(ready=0)
    assert harness.turn().requested == 0
    harness.cell.burst(1)
    state = harness.turn()
    assert (state.requested, state.reason, harness.target) == (1, "wake", 1)


def test_a_fixed_count_is_held_and_changes_live(run: Run) -> None:
    harness = run(ready=2, policy="fixed", count=2)
    assert [harness.turn().requested for _ in range(2)] == [2, 2]
    harness.apply(policy="fixed", count=4)
    assert (harness.turn().requested, harness.target) == (4, 4)


def test_operators_are_followed_at_once(run: Run) -> None:
    harness = run(ready=2, policy="fixed", count=2)
    harness.turn()
    harness.cell.book.take(Act(time.time(), ActKind.PIN, "m", "ada", replicas=5, until_unix_s=time.time() + 600))
    state = harness.turn()
    assert (state.requested, state.reason, harness.target) == (5, "pinned", 5)
    harness.cell.book.take(Act(time.time(), ActKind.RELEASE, "m", "ada"))
    assert harness.turn().requested == 2


def test_a_cordoned_replica_is_not_one_that_starts(run: Run) -> None:
    harness = run(ready=2, policy="fixed", count=2)
    harness.turn()
    harness.cell.scheduler.replica_cordoned("r0", time.monotonic())
    state = harness.turn()
    assert (state.applied, state.ready, state.starting) == (2, 1, 0)


@pytest.mark.whole
def test_a_long_period_keeps_no_operator_and_no_apply_waiting(run: Run, tmp_path: Path) -> None:
    given = {"policy": "fixed", "period_s": 600.0}
    harness = run(ready=2, count=2, **given)
    harness.turn()
    assert harness.scaling.turn_s == 1.0
    harness.turn()
    assert len(harness.cell.states) == 1, "nothing is new, and it is not time"
    until_unix_s = time.time() + 2.5
    harness.cell.book.take(Act(time.time(), ActKind.PIN, "m", "ada", replicas=5, until_unix_s=until_unix_s))
    assert (harness.turn().reason, harness.target) == ("pinned", 5)
    while time.time() < until_unix_s:
        harness.turn()
    assert harness.turn().requested == 2
    harness.apply(count=3, **given)
    assert (harness.turn().requested, harness.target) == (3, 3)
    harness.target = harness.handover.tick(7)
    assert (harness.turn().requested, harness.cell.states[-1].alarms) == (3, ("foreign_write",))
    found = replayed(entries_of(tmp_path))
    assert (found.inputs, found.difference) == (len(harness.cell.states), None)
    harness.apply(count=3, **{**given, "period_s": 0.2})
    harness.turn()
    assert harness.scaling.turn_s == 0.2
    reported = len(harness.cell.states)
    harness.turn()
    assert len(harness.cell.states) == reported + 1


@pytest.mark.whole
def test_books_that_could_not_be_read_are_not_waited_for_a_whole_period(run: Run) -> None:
    harness = run(period_s=600.0)
    harness.cell.visible = False
    assert harness.turn().reason == "stale"
    harness.cell.book.take(Act(time.time(), ActKind.PIN, "m", "ada", replicas=1, until_unix_s=time.time() + 600))
    assert harness.turn().reason == "pinned", "which hides that the books are stale"
    reported = len(harness.cell.states)
    harness.cell.visible = True
    harness.turn()
    assert len(harness.cell.states) == reported + 1
    harness.turn()
    assert len(harness.cell.states) == reported + 1


@pytest.mark.parametrize("concern", list(Concern))
def test_what_no_number_mends_is_an_alarm_beside_any_other(concern: Concern) -> None:
    decision = ScalingDecision(0.0, 2, 2, 2, 2, PolicyReason.STEADY, None, {}, concern=concern)
    assert alarms_of(decision) == ("out_of_reach",)
    assert alarms_of(
        ScalingDecision(0.0, 2, 2, 2, 3, PolicyReason.DEMAND, Limit.UNSCHEDULABLE, {}, concern=concern)
    ) == ("unschedulable", "out_of_reach")
    assert alarms_of(ScalingDecision(0.0, 2, 2, 2, 2, PolicyReason.STEADY, None, {})) == ()


def test_it_goes_on_from_an_earlier_clock() -> None:
    unix_ns = time.time_ns() - 7 * 10**9
    ns, now = ScalingClock(10**18, unix_ns).now()
    assert ns - 10**18 >= 7 * 10**9
    assert now >= unix_ns + 7 * 10**9


def test_it_never_runs_backwards_even_where_the_time_of_day_did() -> None:
    clock = ScalingClock(10**18, time.time_ns() + 10**12)
    assert clock.now()[0] > 10**18
    assert clock.now()[0] <= clock.now()[0]
