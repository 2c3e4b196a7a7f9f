"""A process's work: what the memo holds in another shape is run again; a policy that fails is told of; a run may be
empty."""

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from autoscaling.policies import registry
from autoscaling.policies.fixed import FixedPolicy, FixedSettings
from autoscaling.policies.policy import DesiredReplicas, PolicyEntry, PolicyReason, ReplicaProfile
from autoscaling.policies.registry import POLICIES
from autoscaling.signals.signals import Signals
from planning.gauntlet import worker
from planning.gauntlet.known_rate import Form, Headroom
from planning.gauntlet.run import PolicyFailedError
from planning.gauntlet.scenario import Draw, Scenario, ScenarioRun
from planning.gauntlet.worker import Worker
from tests.planning.gauntlet.small import small_run


def small(draw: Draw) -> ScenarioRun:
    return small_run(draw.number)


def empty(draw: Draw) -> ScenarioRun:
    run = small_run(draw.number)
    return replace(run, workload=run.workload.between(-2.0, -1.0))


@pytest.fixture(autouse=True)
def scenarios(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        worker, "SCENARIOS", {runs.__name__: Scenario(runs.__name__, "t", "c", 0.95, runs) for runs in (small, empty)}
    )


@pytest.mark.whole
def test_what_the_memo_holds_in_another_shape_is_unknown(tmp_path: Path) -> None:
    memo = tmp_path / "memo.jsonl"
    calls: list[tuple[str, tuple[Any, ...]]] = [
        ("score", ("small", "fixed", {"replicas": 2}, 0)),
        ("known_rate", ("small", Headroom(Form.FACTOR, 1.2), 0)),
        ("oracle", ("small", 0, 1)),
        ("headroom", ("small", 1)),
    ]
    found = [getattr(Worker(memo, None), name)(*arguments) for name, arguments in calls]
    rows = [json.loads(line) for line in memo.read_text().splitlines()]
    memo.write_text("".join(json.dumps({**row, "result": {"other": 1}}) + "\n" for row in rows))
    assert [getattr(Worker(memo, None), name)(*arguments) for name, arguments in calls] == found
    assert [getattr(Worker(memo, None), name)(*arguments) for name, arguments in calls] == found
    assert len(memo.read_text().splitlines()) == 2 * len(calls)


def test_a_play_without_a_request_is_one(tmp_path: Path) -> None:
    tried = Worker(None, None).tune("empty", "backlog", 2, 1)
    assert [one.attainment for one in tried] == [1.0, 1.0]


@dataclass
class _Failing:
    """Answers `answers` times, and raises from then on."""

    answers: int
    name: str = "failing"
    period_s: float = 1.0
    latency_span_s: float = 0.0

    def decide(self, signals: Signals) -> DesiredReplicas:
        self.answers -= 1
        if self.answers < 0:
            raise ValueError("boom")
        return DesiredReplicas(2, PolicyReason.DEMAND)


def _entered(monkeypatch: pytest.MonkeyPatch, answers: int) -> None:
    def make(settings: FixedSettings, replica_profile: ReplicaProfile) -> _Failing | FixedPolicy:
        return _Failing(answers)

    policies = {**POLICIES, "failing": PolicyEntry("failing", FixedSettings, make, "for tests")}
    monkeypatch.setattr(worker, "POLICIES", policies)
    monkeypatch.setattr(registry, "POLICIES", policies)


def test_a_policy_that_never_answers_has_no_score(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    _entered(monkeypatch, 0)
    for call, arguments in (("score", ({}, 0)), ("tune", (1, 1))):
        with pytest.raises(PolicyFailedError, match=r"policy 'failing' .* scenario 'small': ValueError: boom"):
            getattr(Worker(tmp_path / "memo.jsonl", None), call)("small", "failing", *arguments)
    assert not (tmp_path / "memo.jsonl").exists()


def test_a_policy_that_fails_at_times_is_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    _entered(monkeypatch, 100)
    working = Worker(None, None)
    working.score("small", "fixed", {}, 0)
    assert not working.notes()
    for number in range(2):
        working.score("small", "failing", {}, number)
    assert len(working.notes()) == 1
    assert "'failing'" in working.notes()[0]
    assert "ValueError: boom" in working.notes()[0]
