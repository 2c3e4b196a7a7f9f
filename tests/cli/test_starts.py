"""What people read of starts: the phase that a replica is in, where the time went, why a model does not start."""

import time

import pytest

from cli.starts import hint_of, parts_of, sentence_of, start_line, starting_line
from deployments.starts.phases import Phase
from deployments.starts.start import StartReport
from deployments.starts.tracker import StartTracker

FETCHING = StartReport("engine-m#abcd", "m", "n", Phase.FETCH, 7.0, {Phase.ENVIRONMENT: 3.0, Phase.FETCH: 7.0})


def test_a_starting_replica_shows_its_phase_and_since_when() -> None:
    tracker, now = StartTracker(), time.time()
    tracker.asked("m", 1, now - 12.0)
    tracker.report(FETCHING, now)
    (start,) = tracker.starts().running
    assert "abcd starts: fetch for 7s, 12s in all" in starting_line(start, "abcd")


def test_a_model_that_cannot_start_says_phase_cause_log_and_what_to_do() -> None:
    tracker, now = StartTracker(), time.time()
    tracker.failed(FETCHING, "ArtifactError: no such bucket", "/run/failed.log", now)
    tracker.failed(FETCHING, "ArtifactError: no such [bucket]", "/run/failed.log", now)
    (failing,) = tracker.starts().failing
    first, log, to_do = sentence_of(failing).splitlines()
    assert first == "model m cannot start (phase fetch; 2 attempts): ArtifactError: no such [bucket]"
    assert log == "  log: /run/failed.log"
    assert to_do.startswith("  to do: check the model's `source`")
    assert to_do.endswith("the next attempt is in 2s")


def test_a_ready_replica_shows_where_the_time_went() -> None:
    tracker = StartTracker()
    start = tracker.ready(FETCHING, 1_000.0)
    assert start_line(start, "abcd") == ("abcd was ready 10.0 s after it was asked for: environment 3.0 s, fetch 7.0 s")
    assert "not known" in start_line(None, "abcd")
    assert parts_of({Phase.LOAD: 0.01}) == "nothing took longer than 50 ms"


@pytest.mark.parametrize("phase", Phase)
def test_every_phase_has_something_to_do(phase: Phase) -> None:
    assert hint_of(phase)
