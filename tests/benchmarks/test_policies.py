"""The scenarios run the same for everybody and can be met; curves and what is read from them; the command."""

import json
import math
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer
from typer.testing import CliRunner

from autoscaling.policies.policy import PolicyEntry
from autoscaling.policies.registry import POLICIES
from benchmarks.policies import run as policy_run
from benchmarks.policies.__main__ import main
from benchmarks.policies.compare import CURVES, CurvePoint, against, hours_at, pick, scores
from benchmarks.policies.faults import Faults, ReplicaFailure
from benchmarks.policies.run import PolicyFailedError, ScenarioRun, known_rate, replica_profile_of, score_of, scored
from benchmarks.policies.scenarios import SCENARIOS, Scenario, scenario_of_file
from planning.workload.trace import TraceError
from tests.autoscaling.outside import install_mine
from tests.benchmarks.recordings import write_recordings

ALIKE = ("servegen_week", "judged_2", "judged_3", "judged_5")
"""Other days of what `judged_1` and `judged_4` draw."""
every_scenario = pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.long] if name in ALIKE else []) for name in SCENARIOS]
)
reading = pytest.mark.parametrize("name", [name for name, one in SCENARIOS.items() if one.reads])


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_recordings(tmp_path_factory.mktemp("traces"))


def same(one: ScenarioRun, other: ScenarioRun) -> bool:
    columns = ("arrived_s", "prompt_tokens", "output_tokens", "ttft_slo_s")
    mine, theirs = one.workload, other.workload
    return all(np.array_equal(getattr(mine, name), getattr(theirs, name)) for name in columns)


@pytest.mark.whole
@every_scenario
def test_a_number_draws_one_run_of_an_affordable_size(name: str, traces: Path) -> None:
    scenario = SCENARIOS[name]
    run = scenario.run(0, traces)
    assert same(run, scenario.run(0, traces))
    assert not same(run, scenario.run(1, traces))
    work = run.workload
    assert 50 <= len(work) <= (80_000 if scenario.long else 13_000)
    assert work.arrived_s.max() <= run.until_s
    assert int((work.prompt_tokens + work.output_tokens).max()) <= run.serving.limits.kv_tokens
    assert run.bounds.minimum <= run.replicas <= run.bounds.maximum
    load = run.load.replicas
    assert load.min() >= 0
    assert 0 < load.mean() < run.bounds.maximum
    assert all(write.at_s < run.until_s for write in run.faults.writes)
    assert replica_profile_of(run).start_up_s == run.start_up_s


@pytest.mark.long
@pytest.mark.parametrize("name", [name for name, one in SCENARIOS.items() if not one.long])
def test_the_maximum_of_replicas_meets_the_slo(name: str, traces: Path) -> None:
    run = SCENARIOS[name].run(0, traces)
    assert score_of(run, "fixed", {"replicas": run.bounds.maximum}).attainment >= run.target


@pytest.mark.long
def test_who_knows_the_rate_needs_less_than_the_peak_and_more_factor_is_more_hours() -> None:
    run = SCENARIOS["ramp"].run(0)
    peak = math.ceil(float(run.load.replicas.max()))
    lean, rich = (scored(run, known_rate(run, factor)) for factor in (1.3, 2.0))
    assert lean.attainment >= run.target
    assert lean.replica_hours < rich.replica_hours
    assert lean.replica_hours < score_of(run, "fixed", {"replicas": peak}).replica_hours


@pytest.mark.long
def test_a_policy_that_sees_nothing_changes_nothing_and_half_the_speed_carries_less() -> None:
    run = SCENARIOS["burst"].run(0)
    assert score_of(run, "backlog", {}).changes > 0
    assert score_of(replace(run, blind_s=(0.0, run.until_s)), "backlog", {}).changes == 0
    steady = replace(SCENARIOS["flapping"].run(0), replicas=1)
    lost = replace(steady, faults=Faults(failures=(ReplicaFailure(300.0, 0),)))
    whole, slow = (score_of(one, "fixed", {"replicas": 1}) for one in (lost, replace(steady, slow_s=300.0)))
    assert slow.attainment < whole.attainment - 0.2
    assert slow.recovery_s > whole.recovery_s


@reading
def test_a_missing_recording_is_named(name: str, tmp_path: Path) -> None:
    for folder in (None, tmp_path):
        with pytest.raises(TraceError, match="|".join(SCENARIOS[name].reads)):
            SCENARIOS[name].run(0, folder)


@reading
def test_a_damaged_recording_is_named(name: str, traces: Path, tmp_path: Path) -> None:
    shutil.copytree(traces, tmp_path, dirs_exist_ok=True)
    for file in (one for one in tmp_path.rglob("*") if one.is_file()):
        file.write_bytes(file.read_bytes()[: file.stat().st_size // 2] + b"\0")
    with pytest.raises(TraceError, match=str(tmp_path)):
        SCENARIOS[name].run(0, tmp_path)


def points(*figures: tuple[float, float]) -> list[CurvePoint]:
    return [CurvePoint(float(number), attainment, hours, 0.0) for number, (attainment, hours) in enumerate(figures)]


def test_hours_at_the_slo_lie_between_the_points_around_it() -> None:
    curve = points((0.90, 1.0), (0.98, 3.0), (0.93, 2.5), (0.94, 2.0))
    assert hours_at(curve, 0.96) == pytest.approx(2.5), "0.93 for 2.5 hours is beaten by 0.94 for 2.0"
    assert hours_at(curve, 0.90) == 1.0
    assert hours_at(curve, 0.5) == 1.0, "the leanest that was tried"
    assert hours_at(curve, 0.99) is None


def test_hours_are_compared_where_both_curves_attain_as_much() -> None:
    own = [CurvePoint(1, 0.90, 8.0, 0), CurvePoint(2, 0.98, 12.0, 0)]
    other = [CurvePoint(1, 0.94, 20.0, 0), CurvePoint(2, 0.999, 40.0, 0)]
    assert against(own, other) == pytest.approx((10.0 / 20.0 + 12.0 / (20.0 + 20.0 * 0.04 / 0.059)) / 2)
    assert against(own, [CurvePoint(1, 0.99, 1.0, 0)]) is None


def test_the_pick_is_the_cheapest_that_meets_the_slo_or_misses_least() -> None:
    curve = points((0.90, 1.0), (0.99, 3.0), (0.97, 2.0))
    assert pick(curve, 0.95).value == 2
    assert pick(curve, 0.999).value == 1


def test_a_policy_that_fails_has_no_score(monkeypatch: pytest.MonkeyPatch) -> None:
    class Failing:
        name, period_s = "failing", 1.0

        def decide(self, signals: object) -> None:
            raise RuntimeError("lost the books")

    entry = PolicyEntry("failing", POLICIES["fixed"].settings, lambda settings, profile: Failing())  # type: ignore[arg-type, return-value]
    monkeypatch.setattr(policy_run, "make_policy", lambda name, settings, profile: entry.make(None, profile))
    with pytest.raises(PolicyFailedError, match=r"'failing'.*lost the books"):
        score_of(SCENARIOS["idle"].run(0), "failing", {})


def trace_file(folder: Path, per_s: float = 2.0) -> Path:
    path = folder / "own.jsonl"
    one = {"input_length": 600, "output_length": 200, "hash_ids": []}
    rows = [{"timestamp": round(1e3 * number / per_s), **one} for number in range(int(60 * per_s))]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def invoked(*arguments: str) -> Any:
    app = typer.Typer()
    app.command()(main)
    return CliRunner().invoke(app, arguments, env={"COLUMNS": "200", "RAYLANE_TRACES": ""})


@pytest.mark.whole
def test_the_command_compares_on_ones_own_traffic(tmp_path: Path) -> None:
    found = []
    for number, jobs in enumerate(("1", "2")):
        file = tmp_path / f"{number}.json"
        given = ("--trace", str(trace_file(tmp_path)), "--policies", "backlog,fixed", "--json", str(file))
        done = invoked(*given, "--jobs", jobs)
        assert done.exit_code == 0, done.output
        assert "own.jsonl" in done.output
        found.append(json.loads(file.read_text())["scenarios"])
    assert found[0] == found[1], "the same in any order of the processes"
    (scenario,) = found[0]
    assert set(scenario["policies"]) == {"backlog", "fixed"}
    assert len(scenario["policies"]["backlog"]["curve"]) == len(CURVES["backlog"][1])


@pytest.mark.whole
def test_a_policy_of_another_package_is_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install_mine(tmp_path, monkeypatch)
    file = tmp_path / "found.json"
    done = invoked("--trace", str(trace_file(tmp_path)), "--policies", "mine", "--json", str(file), "--jobs", "1")
    assert done.exit_code == 0, done.output
    (scenario,) = json.loads(file.read_text())["scenarios"]
    found = scenario["policies"]["mine"]
    assert (found["setting"], [one["value"] for one in found["curve"]]) == ("replicas", [1, 2, 3, 4, 5])
    assert found["curve"][0]["replica_hours"] < found["curve"][-1]["replica_hours"]
    other = invoked("--trace", str(trace_file(tmp_path)), "--policies", "other", "--jobs", "1")
    assert (other.exit_code, "no PolicyEntry" in other.output) == (2, True)


@pytest.mark.whole
def test_a_busier_file_may_have_more_replicas(tmp_path: Path) -> None:
    def of(load_scale: float) -> Scenario:
        given = {"length_scale": 1.0, "slo_s": 2.0, "target": 0.95, "start_up_s": 60.0}
        return scenario_of_file(trace_file(tmp_path), load_scale=load_scale, **given)

    quiet, busy = of(1.0), of(8.0)
    assert busy.maximum > quiet.maximum
    assert len(busy.run(0).workload) == pytest.approx(8 * len(quiet.run(0).workload), rel=0.1)
    assert len(scores(quiet, "hpa", 0, None)) == len(CURVES["hpa"][1])


def test_what_there_is_not_is_refused(tmp_path: Path) -> None:
    assert "'calm'; allowed: burst" in invoked("--scenarios", "calm").output.replace("\n", "")
    assert invoked("--policies", "none", "--scenarios", "idle").exit_code == 2
    skipped = invoked("--scenarios", "azure_chat")
    assert skipped.exit_code == 2
    assert "azure2023_conv.csv.gz" in skipped.output
    (tmp_path / "bad.csv").write_text("nothing\n")
    assert "bad.csv" in invoked("--trace", str(tmp_path / "bad.csv")).output
