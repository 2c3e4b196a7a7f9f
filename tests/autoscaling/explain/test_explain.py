"""What is told of a decision is what the policy itself answers when it is asked again."""

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest

from autoscaling.explain.explanation import explain, words
from autoscaling.explain.moments import DecisionMoment, levers, moments, why
from autoscaling.log import ScalingLog, log_name
from autoscaling.policies.policy import Concern, PolicyReason
from autoscaling.scaler.decision import Limit, ScalingDecision
from autoscaling.shadow.pair import Pair
from cli.explain import chosen_logs
from cli.run_dir import State
from deployments.cell.control import Control, ControlKind
from deployments.decision_log import log_files, read_log
from tests.autoscaling.setups import entries_of, setup, stream
from tests.cli.test_cli_run_dir import written
from tests.commands import ran

PIN = Control(ControlKind.PIN, 1, 1_700_000_100.0, "ada", "a visit")


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> list[DecisionMoment]:
    """Of ten minutes of the backlog policy, with a pin for some seconds, what is applied following what was asked
    for."""
    folder = tmp_path_factory.mktemp("log")
    pair, applied = Pair(setup(maximum=6, shadow={"policy": "fixed"})), 2
    log = ScalingLog(folder, "m", "here")
    for number, shown in enumerate(stream(600, slo_s=1.0)):
        signals = replace(shown, applied=applied, starting=max(0, applied - 2))
        controls = (PIN,) if 20 <= number < 24 else ()
        log.before(pair, signals.at_s, signals.unix_s)
        decision = pair.decide(signals, controls)
        log.after(signals, controls, decision)
        applied = decision.requested
    log.close()
    return list(moments(entries_of(folder)))


@pytest.mark.whole
def test_a_moment_can_be_asked_again_to_the_same_decision(found: list[DecisionMoment]) -> None:
    assert len(found) > 3
    assert {moment.model for moment in found} == {"m"}
    for moment in found:
        pair = moment.pair()
        again = [pair.decide(record.signals, record.controls) for record in moment.records]
        assert again[-1] == moment.decision


@pytest.mark.whole
def test_levers_that_are_not_moved_change_nothing(found: list[DecisionMoment]) -> None:
    for moment in found:
        for lever in levers(moment):
            decision = lever.decide(0.0 if lever.counts else 1.0)
            assert decision is not None
            assert decision.requested == moment.decision.requested, lever.name


@pytest.mark.whole
def test_what_would_have_changed_it_does(found: list[DecisionMoment]) -> None:
    steps = [moment for moment in found if moment.decision.changes and moment.decision.limit is None]
    assert steps
    seen = set()
    for moment in steps[:5]:
        reported = explain(moment)
        by_name = {lever.name: lever for lever in levers(moment)}
        assert reported.turns, reported
        for turn in reported.turns:
            decision = by_name[turn.lever].decide(turn.at)
            assert decision is not None
            assert decision.requested == turn.replicas != moment.decision.requested
            seen.add(turn.lever)
    assert "arrivals" in seen or "waiting work" in seen


@pytest.mark.whole
def test_an_operators_word_is_told_with_what_the_policy_wanted(found: list[DecisionMoment]) -> None:
    reported = explain(next(moment for moment in found if moment.decision.limit is Limit.PINNED))
    assert "an operator pinned 1" in reported.words
    assert reported.unbound is not None
    assert reported.unbound > 1
    assert reported.turns == ()


@pytest.mark.whole
def test_it_prints_and_is_plain_data(found: list[DecisionMoment]) -> None:
    reported = explain(found[-1])
    head, *rest = reported.lines()
    assert "(" in head
    assert rest[0].startswith("  why: ")
    assert "  computed: left_s inf" in replace(reported, terms={"left_s": math.inf}).lines()
    assert set(reported.as_json()) >= {"requested", "reason", "inputs", "terms", "turns", "insensitive"}


@pytest.mark.parametrize("limit", [None, *Limit])
def test_every_reason_has_its_words(limit: Limit | None, found: list[DecisionMoment]) -> None:
    bounds = found[0].bounds
    for policy_reason in PolicyReason:
        decision = ScalingDecision(0.0, 1, 1, 2, 3, policy_reason, limit, {})
        assert words(decision, bounds)
    assert words(ScalingDecision(0.0, 1, 1, 2, None, None, limit or Limit.STALE, {}, "no"), bounds)


@pytest.mark.parametrize("concern", list(Concern))
def test_every_concern_has_its_words_and_stands_beside_the_reason(
    concern: Concern, found: list[DecisionMoment]
) -> None:
    decision = ScalingDecision(0.0, 2, 2, 2, 2, PolicyReason.STEADY, None, {})
    without, reported = words(decision, found[0].bounds), words(replace(decision, concern=concern), found[0].bounds)
    assert reported.startswith(without + "; SLOs are missed")


@pytest.mark.whole
def test_a_concern_stands_in_the_json(found: list[DecisionMoment]) -> None:
    moment = replace(found[1], decision=replace(found[1].decision, concern=Concern.NOTHING_WAITS))
    assert why(found[1].decision) != why(moment.decision)
    assert explain(moment).as_json()["concern"] == "nothing_waits"


def test_the_command_says_what_is_no_log_and_no_time(tmp_path: Path) -> None:
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    assert "not a decision log" in ran("explain", "--log", str(tmp_path / "binary"), code=2).output
    assert "--at '0001-01-01T00:00': allowed" in ran("explain", "--at", "0001-01-01T00:00", code=2).output


@pytest.mark.whole
def test_the_command_reads_no_older_file_than_it_needs(tmp_path: Path) -> None:
    pair, applied, log = Pair(setup(maximum=6)), 2, ScalingLog(tmp_path, "m", "here", max_bytes=8_000)
    for signals in stream(100):
        log.before(pair, signals.at_s, signals.unix_s)
        decision = pair.decide(signals := replace(signals, applied=applied))
        log.after(signals, (), decision)
        applied = decision.requested
    log.close()
    files = log_files(tmp_path, log_name("m"))
    known = [(one.decision.reason, one.record.signals.unix_s) for one in moments(read_log(files))]
    assert len(files) > 2

    def told(*given: str, code: int = 0) -> list[tuple[str, float]]:
        named = [word for file in files for word in ("--log", str(file))]
        output = ran("explain", "--reasons", "--json", *given, *named, code=code).output
        return [] if code else [(one["reason"], one["at_unix_s"]) for one in json.loads(output)]

    newest = sum(1 for _ in moments(read_log(files[-1:])))
    files[0].write_text("no log")
    assert told("--last", str(newest + 1)) == known[-newest - 1 :]
    assert told("--last", "500", code=2) == []


def test_the_only_model_is_found_whatever_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAYLANE_HOME", str(tmp_path))
    run_dir = written(State("here", 1, 0.0, "", "", ready=False))
    log = run_dir.path / "logs" / f"{log_name('org/m')}.000001.log"
    log.write_text("")
    assert chosen_logs(None, []) == chosen_logs("org/m", []) == [log]
    assert "allowed: org/m" in ran("explain", "org-m", code=2).output
