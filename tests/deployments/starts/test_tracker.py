"""The directory's part in starts: since when they were asked for, how they end, and how long the next one waits."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cli.starts import starting_line
from cluster.fetch_progress import FetchProgress
from deployments.starts.phases import Phase
from deployments.starts.start import StartOutcome, StartReport
from deployments.starts.tracker import BACK_OFF_S, GIVE_UP_AFTER_S, KEPT, MAX_BACK_OFF_S, SHOWN_EVERY_S, StartTracker


def report(replica_id: str = "r1", model: str = "m", node: str = "n1", **seconds: float) -> StartReport:
    spent = {Phase(name): value for name, value in seconds.items()}
    return StartReport(replica_id, model, node, list(spent)[-1], list(spent.values())[-1], spent)


@given(st.floats(0, 500), st.floats(0, 500), st.floats(0, 100), st.floats(0, 100))
def test_the_phases_add_up_to_the_time_since_the_request(
    node_s: float, idle_s: float, environment_s: float, load_s: float
) -> None:
    """Whether the process began after the request, or was there before it (Ray keeps some ready)."""
    tracker = StartTracker()
    asked_s = 1_000.0
    tracker.asked("m", 1, asked_s)
    begun_s = asked_s + node_s if node_s > idle_s else asked_s - idle_s
    first_s = max(begun_s + environment_s, asked_s)
    tracker.report(report(environment=first_s - begun_s), first_s)
    now = first_s + load_s
    start = tracker.ready(report(environment=first_s - begun_s, load=load_s), now)
    assert start.wall_s == pytest.approx(now - asked_s)
    assert sum(start.seconds.values()) == pytest.approx(start.wall_s, abs=1e-6)
    assert min(start.seconds.values()) >= 0


def test_requests_and_replicas_are_matched_in_their_order() -> None:
    tracker = StartTracker()
    tracker.asked("m", 1, 100.0)
    tracker.decided("m", requested=2, applied=1, ready=0, now=110.0)
    assert tracker.report(report("r1", environment=1.0), 112.0)
    assert not tracker.report(report("r1", environment=2.0), 113.0)
    assert tracker.report(report("r2", environment=1.0), 114.0)
    assert tracker.report(report("r3", environment=1.0), 120.0)
    first, second, third = tracker.starts().running
    assert (first.asked_unix_s, second.asked_unix_s, third.asked_unix_s) == (100.0, 110.0, 119.0)
    assert first.seconds[Phase.NODE] == pytest.approx(11.0)
    assert second.seconds[Phase.NODE] == pytest.approx(3.0)


def test_what_is_no_longer_requested_is_forgotten() -> None:
    tracker = StartTracker()
    tracker.asked("m", 3, 100.0)
    tracker.decided("m", requested=1, applied=3, ready=0, now=110.0)
    tracker.report(report("r1", environment=1.0), 120.0)
    tracker.report(report("r2", environment=1.0), 120.0)
    assert [start.asked_unix_s for start in tracker.starts().running] == [100.0, 119.0]


def test_the_first_replicas_are_asked_for_with_the_cell_or_with_their_model() -> None:
    """Serve's configuration deploys them: nobody asks for each."""
    tracker = StartTracker(began_unix_s=100.0)
    tracker.report(report("r1", environment=1.0), 110.0)
    tracker.ready(report("r1", environment=2.0), 111.0)
    tracker.deployed(["m"], 112.0)
    tracker.report(report("r2", environment=5.0), 113.0)  # its process began before the first one was ready
    assert tracker.starts().running[0].seconds[Phase.NODE] == pytest.approx(8.0)
    assert tracker.starts().done_of("m")[0].seconds[Phase.NODE] == pytest.approx(9.0)
    tracker.report(report("r3", environment=1.0), 500.0)  # comes in another's place, for which nobody was asked
    assert tracker.starts().running[1].asked_unix_s == 499.0
    tracker.deployed(["m", "new"], 600.0)
    tracker.report(report("n1", "new", environment=1.0), 611.0)
    assert tracker.starts().running[2].seconds[Phase.NODE] == pytest.approx(10.0)


def test_the_directorys_successor_does_not_take_the_cell_for_new() -> None:
    tracker = StartTracker()
    tracker.report(report("r1", environment=1.0), 110.0)
    assert tracker.starts().running[0].asked_unix_s == 109.0
    tracker.deployed(["m", "new"], 200.0)
    tracker.report(report("n1", "new", environment=1.0), 205.0)
    assert tracker.starts().running[1].asked_unix_s == 200.0


def test_a_failed_start_says_its_phase_and_the_next_one_waits_longer() -> None:
    tracker = StartTracker()
    assert tracker.wait_s("m", 0.0) == 0.0
    waits = []
    for number in range(12):
        now = 1_000.0 * number
        tracker.failed(report(f"r{number}", environment=1.0, fetch=5.0), "ArtifactError: no such bucket", "/log", now)
        waits.append(tracker.wait_s("m", now))
    assert waits[:3] == [BACK_OFF_S, 2 * BACK_OFF_S, 4 * BACK_OFF_S]
    assert waits == sorted(waits)
    assert waits[-1] == MAX_BACK_OFF_S
    (failing,) = tracker.starts().failing
    assert (failing.failures, failing.last.phase, failing.last.log) == (12, Phase.FETCH, "/log")
    assert failing.last.cause == "ArtifactError: no such bucket"
    assert tracker.starts().tallies[0].failed_in == {Phase.FETCH: 12}
    assert tracker.wait_s("other", now) == 0.0
    tracker.ready(report("r99", load=1.0), now + 1)
    assert tracker.starts().failing == ()
    assert tracker.wait_s("m", now + 1) == 0.0


def test_a_start_that_says_nothing_any_more_has_failed_unless_it_was_stopped() -> None:
    tracker = StartTracker()
    tracker.decided("m", requested=2, applied=0, ready=0, now=99.0)
    tracker.report(report("r1", load=1.0), 100.0)
    tracker.report(report("r2", load=1.0), 100.0)
    assert tracker.sweep(100.0 + GIVE_UP_AFTER_S) == []
    tracker.decided("m", requested=1, applied=2, ready=0, now=110.0)
    (failed,) = tracker.sweep(100.1 + GIVE_UP_AFTER_S)
    assert (failed.outcome, failed.phase) == (StartOutcome.FAILED, Phase.LOAD)
    assert "without a word" in failed.cause
    assert tracker.starts().running == ()


def test_the_last_starts_are_kept_and_survive_the_directory() -> None:
    tracker = StartTracker()
    for number in range(KEPT + 3):
        tracker.ready(report(f"r{number}", environment=1.0, load=float(number)), 100.0 + number)
    done = tracker.starts().done_of("m")
    assert [start.replica_id for start in done] == [f"r{number}" for number in range(3, KEPT + 3)]
    successor = StartTracker()
    successor.recall(done)
    assert successor.starts().done_of("m") == done
    (tally,) = tracker.starts().tallies
    assert (tally.ready, tally.seconds[Phase.LOAD]) == (KEPT + 3, sum(range(KEPT + 3)))


def test_the_progress_of_a_fetch_is_news_now_and_then_and_gone_when_it_ends() -> None:
    tracker = StartTracker()
    fetching = FetchProgress(3 << 30, 140 << 30, 2 << 30, 812e6)
    at = replace(report("r1", environment=1.0, fetch=9.0), fetching=fetching)
    assert tracker.report(at, 100.0)
    assert [tracker.report(at, 100.0 + second) for second in (2.0, 4.0)] == [False, False]
    assert tracker.report(at, 100.0 + SHOWN_EVERY_S)
    (running,) = tracker.starts().running
    assert running.fetching == fetching
    assert "(3.00 of 140.00 GiB, 812 MB/s)" in starting_line(running, "r1")
    failed = tracker.failed(at, "no such bucket", "", 110.0)
    assert failed.fetching is None
    assert "GiB" not in starting_line(failed, "r1")
