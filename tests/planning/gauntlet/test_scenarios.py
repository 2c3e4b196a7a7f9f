"""What every scenario owes, whoever adds it: it is in the registry, it runs the same for everybody, it is of a size
that one can afford, and its SLO can be met. To add a scenario: a file in `scenarios/`, its name in `registry.py`;
this suite then tests it, and needs no change here."""

import shutil
from pathlib import Path

import numpy as np
import pytest

from autoscaling.policies.registry import make_policy
from planning.gauntlet.frontier import floor_of
from planning.gauntlet.recorded import NoTracesError, TracesError, trace_files
from planning.gauntlet.registry import SCENARIOS
from planning.gauntlet.run import outcome_of, replica_profile_of, score_of
from planning.gauntlet.scenario import Draw, ScenarioRun
from planning.report.gauntlet import story_of

MAX_REQUESTS, MAX_REQUESTS_LONG = 13_000, 80_000

every_scenario = pytest.mark.parametrize("name", list(SCENARIOS))


def same(one: ScenarioRun, other: ScenarioRun) -> bool:
    mine, theirs = one.workload, other.workload
    if len(mine) != len(theirs):
        return False
    columns = ("arrived_s", "prompt_tokens", "output_tokens", "ttft_slo_s")
    return (
        all(np.array_equal(getattr(mine, column), getattr(theirs, column)) for column in columns)
        and one.faults == other.faults
    )


@every_scenario
@pytest.mark.whole
def test_the_same_draw_is_the_same_play_and_another_is_another(name: str, traces: Path) -> None:
    scenario = SCENARIOS[name]
    first = scenario.runs(Draw(0, False, traces))
    assert same(first, scenario.runs(Draw(0, False, traces)))
    np.testing.assert_array_equal(first.load.replicas, scenario.runs(Draw(0, False, traces)).load.replicas)
    assert not same(first, scenario.runs(Draw(1, False, traces)))
    assert not same(first, scenario.runs(Draw(0, True, traces)))


@pytest.mark.whole
@every_scenario
def test_its_plays_are_of_a_sane_size(name: str, traces: Path) -> None:
    scenario = SCENARIOS[name]
    run = scenario.runs(Draw(0, False, traces))
    work = run.workload
    assert 50 <= len(work) <= (MAX_REQUESTS_LONG if scenario.long else MAX_REQUESTS)
    assert 300 <= run.until_s <= 86_400
    assert work.arrived_s.max() <= run.until_s
    assert int((work.prompt_tokens + work.output_tokens).max()) <= run.serving.limits.kv_tokens
    assert run.bounds.minimum <= run.replicas <= run.bounds.maximum
    assert 0 < run.load.mean < run.bounds.maximum
    assert run.load.replicas.min() >= 0
    busy = run.load.replicas[: int(run.until_s / 5)].mean()
    assert busy == pytest.approx(run.load.mean, rel=0.1)
    assert all(write.at_s < run.until_s for write in run.faults.writes)
    assert replica_profile_of(run).start_up_s == run.start_up_s[0] >= 0


@every_scenario
def test_it_says_what_it_is(name: str) -> None:
    scenario = SCENARIOS[name]
    assert scenario.name == name
    assert name.replace("_", "").isalnum()
    assert scenario.title
    assert scenario.complaint
    assert floor_of(scenario.target) < scenario.target < 1
    assert len(story_of(scenario)) > 100
    if scenario.tuned_on is not None:
        assert SCENARIOS[scenario.tuned_on].tuned_on is None


@pytest.mark.parametrize("name", [name for name, one in SCENARIOS.items() if one.tuned_on is None and not one.long])
@pytest.mark.whole
def test_the_maximum_of_replicas_meets_its_slo(name: str, traces: Path) -> None:
    scenario = SCENARIOS[name]
    run = scenario.runs(Draw(0, False, traces))
    out = outcome_of(
        run, make_policy("fixed", {"replicas": run.bounds.maximum}, replica_profile_of(run)), scenario.target
    )
    found = score_of(run, out, scenario.target)
    assert found.attainment >= scenario.target
    assert found.replica_hours > 0.8 * run.bounds.maximum * run.until_s / 3_600 - 1


@pytest.mark.parametrize("name", [name for name, one in SCENARIOS.items() if one.needs_traces])
def test_without_recordings_it_says_which_it_wants(name: str, tmp_path: Path) -> None:
    for folder in (None, tmp_path):
        with pytest.raises(NoTracesError, match="|".join(SCENARIOS[name].reads)):
            SCENARIOS[name].runs(Draw(0, False, folder))


@pytest.mark.whole
@pytest.mark.parametrize("name", [name for name, one in SCENARIOS.items() if one.needs_traces])
def test_it_names_all_recordings_that_it_reads(name: str, traces: Path, tmp_path: Path) -> None:
    for file in trace_files(traces, SCENARIOS[name].reads):
        shutil.copy(file, tmp_path)
    assert same(SCENARIOS[name].runs(Draw(0, False, tmp_path)), SCENARIOS[name].runs(Draw(0, False, traces)))


@pytest.mark.parametrize("name", ["azure_chat", "mooncake", "servegen_week"])
def test_a_damaged_recording_is_named(name: str, traces: Path, tmp_path: Path) -> None:
    for file in trace_files(traces, SCENARIOS[name].reads):
        (tmp_path / file.name).write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    with pytest.raises(TracesError, match=str(tmp_path)):
        SCENARIOS[name].runs(Draw(0, False, tmp_path))
