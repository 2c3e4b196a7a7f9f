"""`raylane tune`: a proposal as a diff, its effect, its report; refused where the simulator's error is unknown; bad
input is named."""

import json
import resource
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import Result

from autoscaling.forecast.history import History
from cli import tune
from cli.options import StartOptions, TrafficOptions
from cli.tune import show
from cli.tune_inputs import gathered
from cluster.spec import load_spec
from deployments.engine_model.cost_file import write_cost_file
from deployments.telemetry.published_error import write_published
from planning.workload.trace import Trace
from planning.workload.traces import read_requests, write_trace
from tests.commands import ran
from tests.planning.tune import cases

pytestmark = pytest.mark.whole


@pytest.fixture
def files(tmp_path: Path) -> tuple[str, ...]:
    """A spec, and the arguments that name its traffic, costs and published error."""
    spec, trace, costs, error = (tmp_path / name for name in ("spec.yaml", "trace.jsonl", "costs.json", "error.json"))
    spec.write_text(cases.TEXT)
    work = cases.work(300.0)
    write_trace(trace, Trace(work.arrived_s, work.prompt_tokens, work.output_tokens))
    write_cost_file(costs, cases.costs())
    write_published(error, cases.known_error(0.1))
    return (str(spec), "--trace", str(trace), "--costs", str(costs), "--error", str(error))


def run(*arguments: str, code: int | None = 0) -> Result:
    return ran("tune", *arguments, code=code, columns=220)


def test_a_proposal_with_its_effect_its_report_and_the_spec(files: tuple[str, ...], tmp_path: Path) -> None:
    out, report = tmp_path / "tuned.yaml", tmp_path / "report.html"
    result = run(*files, "--trials", "8", "--out", str(out), "--report", str(report))
    assert "8 settings looked at" in result.output
    assert "-    utilisation: 0.7   # a third free" in result.output
    assert "GPU-hours a day" in result.output
    assert "TTFT p90 +10.0% at 0.9 x capacity" in result.output
    assert "read before use" not in result.output
    tuned = load_spec(out)
    assert tuned.autoscaling.backlog != load_spec(Path(files[0])).autoscaling.backlog
    assert "# a third free" in out.read_text()
    assert "Tuned:" in report.read_text(encoding="utf-8")


def test_each_change_has_a_gain_and_the_outcome_is_checked_on_another_trace(
    files: tuple[str, ...], tmp_path: Path
) -> None:
    other, busier, out = tmp_path / "other.jsonl", tmp_path / "busier.jsonl", tmp_path / "tuned.yaml"
    work = cases.work(300.0, seed=1)
    write_trace(other, Trace(work.arrived_s, work.prompt_tokens, work.output_tokens))
    write_trace(busier, Trace(work.arrived_s / 8, work.prompt_tokens, work.output_tokens))
    result = run(*files, "--trials", "8", "--no-range", "--check", str(other), "--out", str(out), "--json", code=None)
    reported = json.loads(result.stdout)
    assert result.exit_code == (4 if reported["check"]["missed"] else 0)
    assert reported["check"]["trace"] == "other.jsonl"
    assert 0 < reported["check"]["after"]["hours_a_day"] < reported["check"]["before"]["hours_a_day"]
    kept = {gain["setting"]: gain["proposed"] for gain in reported["gains"] if gain["kept"]}
    assert kept
    was, is_now = (load_spec(path).autoscaling.backlog for path in (Path(files[0]), out))
    assert {name: value for name, value in is_now if value != getattr(was, name)} == {
        name: value for name, value in kept.items() if name != "replicas.min"
    }
    missed = run(*files, "--trials", "2", "--no-range", "--check", str(busier), code=4)
    assert ": MISSED by interactive" in missed.stdout
    assert "change:" in missed.stdout


def test_one_group_of_several_is_tuned_on_the_requests_that_are_its_first(
    files: tuple[str, ...], tmp_path: Path
) -> None:
    groups = (
        "    groups:\n      - {name: small, settings: {max_model_len: 512}}\n      - {name: large}\n"
        "    lanes: {short: [small, large]}\n    replicas:"
    )
    Path(files[0]).write_text(cases.TEXT.replace("    replicas:", groups))
    refused = run(*files, "--trials", "2", code=2)
    assert "--group: missing; model 'demo' is tuned by group, allowed: small, large" in refused.stderr
    assert "--group: 'other' is unknown" in run(*files, "--group", "other", code=2).stderr
    result = run(*files, "--trials", "2", "--group", "small", "--no-range", "--json", code=None)
    assert result.exit_code in (0, 1), result.output
    answer = json.loads(result.stdout)
    assert answer["model"] == "demo@small"
    (left_out,) = (one for one in answer["changes"] if one["change"] == "other_group")
    assert 0 < left_out["requests"] < left_out["of"]
    assert "the other groups (large)" in answer["held_fixed"][0]


def test_the_figures_have_a_range(files: tuple[str, ...]) -> None:
    result = run(*files, "--trials", "2")
    assert "the ranges: costs calibrated here, likely -5 % to +5 %" in result.output
    reported = json.loads(run(*files, "--trials", "2", "--json").stdout)
    assert reported["costs_range"] == {"origin": "calibrated here", "low": 0.95, "high": 1.05}
    assert reported["diff"].startswith("--- ")
    assert reported["not_modelled"] == []
    for name in ("spec", reported["chosen"]):
        trial = reported["trials"][name]
        low, high = trial["range"]["hours_a_day"]
        assert low <= trial["hours_a_day"] <= high
        assert low < high
        for one, (low, high) in trial["range"]["by_class"].items():
            assert low <= trial["by_class"][one] <= high
    risky = [
        name
        for name, (low, _) in reported["trials"][reported["chosen"]]["range"]["by_class"].items()
        if low < reported["slos"][name]
    ]
    assert reported["at_risk"] == risky
    assert ("with the costs at an end of their range the SLO is missed" in result.output) == bool(risky)


def test_an_unknown_or_large_error_is_refused_unless_it_is_wanted_anyway(files: tuple[str, ...]) -> None:
    unknown = files[:-2]
    refused = run(*unknown, "--trials", "2", code=3)
    assert "nobody has compared the simulator" in refused.stderr
    assert "raylane rehearse" in refused.stderr
    assert "--anyway" in refused.stderr
    assert "read before use" in run(*unknown, "--trials", "1", "--no-range", "--anyway").output


def test_the_specs_own_error_file_is_read(files: tuple[str, ...]) -> None:
    spec = Path(files[0])
    spec.write_text(cases.TEXT + "gateway:\n  simulator_error: error.json\n")
    run(*files[:-2], "--trials", "1", "--no-range")


def test_where_nothing_better_is_found_the_spec_is_written_as_it_is(files: tuple[str, ...], tmp_path: Path) -> None:
    text = cases.TEXT.split("  backlog:")[0]  # the policy's defaults, and no other settings are tried
    Path(files[0]).write_text(text)
    out = tmp_path / "tuned.yaml"
    out.write_text("an older proposal")
    result = run(*files, "--trials", "1", "--out", str(out), "--report", str(tmp_path / "report.html"))
    assert "Nothing found" in result.output
    assert "the best found" in result.output
    assert "roposed" not in result.stdout
    assert "tuned.yaml: the spec, unchanged" in result.stderr
    assert out.read_text() == text


def test_the_history_is_scaled_as_the_traffic_is(files: tuple[str, ...], tmp_path: Path) -> None:
    before = tmp_path / "before.jsonl"
    arrived = np.arange(3_600) * np.float64(2.0)
    write_trace(before, Trace(arrived, np.full(len(arrived), 300), np.full(len(arrived), 100)))
    options = [name.removeprefix("--") for name in files[1::2]]
    spec, given = Path(files[0]), dict(zip(options, map(Path, files[2::2]), strict=True))

    def rates(choice: TrafficOptions) -> History:
        files = (given["costs"], given["trace"])
        return gathered(spec, None, *files, choice, StartOptions(), before, None, 0).case.history

    plain, busier = rates(TrafficOptions()), rates(TrafficOptions(load_scale=3.0))
    longer = rates(TrafficOptions(time_scale=2.0))
    assert np.mean(busier.rates) == pytest.approx(3 * np.mean(plain.rates), rel=0.05)
    assert np.mean(longer.rates) == pytest.approx(np.mean(plain.rates) / 2, rel=0.05)
    assert len(longer) > 1.8 * len(plain)


def test_traffic_files_keep_their_own_seed(files: tuple[str, ...], tmp_path: Path) -> None:
    traffic = tmp_path / "day.yaml"
    traffic.write_text(
        "duration_s: 900\nseed: 7\nstreams: [{name: a, rate: {per_s: 2}, prompt: lognormal:300:1, output: 100}]\n"
    )
    given = (Path(files[0]), None, Path(files[4]), traffic, TrafficOptions(), StartOptions(), traffic, None)
    own, other = gathered(*given, None, traffic), gathered(*given, 0, traffic)
    drawn = read_requests(traffic).prompt_tokens.tolist()
    for case in (own.case, own.check):
        assert case is not None
        assert case.work.prompt_tokens.tolist() == drawn
    assert other.case.work.prompt_tokens.tolist() != drawn
    assert len(own.case.history), "a history may be a traffic file"


def test_where_no_settings_keep_the_promise_the_exit_code_says_so(files: tuple[str, ...]) -> None:
    spec = Path(files[0])
    spec.write_text(cases.TEXT.replace("count: 2, min: 2, max: 8", "count: 1, min: 1, max: 1"))
    assert "NO settings met every SLO" in run(*files, "--trials", "2", "--no-range", code=1).output


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("--trace", "nowhere.csv"), "nowhere.csv"),
        (("--costs", "nowhere.json"), "nowhere.json"),
        (("--error", "nowhere.json"), "nowhere.json"),
        (("--model", "nobody"), "--model 'nobody'"),
        (("--out", "/nowhere/spec.yaml"), "--out /nowhere/spec.yaml: the folder /nowhere does not exist"),
        (("--report", "/"), "--report /: is a folder"),
        (("--minutes", "0.01"), "no simulation"),
        (("--history", "nowhere.csv"), "nowhere.csv"),
        (("--check", "nowhere.csv"), "nowhere.csv"),
        (("--out", "/dev/full"), "--out /dev/full: is not a regular file"),
        (("--minutes", "0"), "minutes"),
    ],
)
def test_bad_input_is_named(files: tuple[str, ...], arguments: tuple[str, ...], named: str) -> None:
    result = run(*files, "--load-scale", "10", "--time-scale", "10", *arguments, code=2)
    assert named in result.output + result.stderr


def test_a_policy_without_a_place_to_look_and_a_fixed_spec_without_bounds_are_named(files: tuple[str, ...]) -> None:
    spec = Path(files[0])
    spec.write_text(cases.TEXT.split("autoscaling:")[0].replace(", max: 8", ""))
    assert "models.demo.replicas.max: missing" in run(*files, code=2).stderr
    spec.write_text(cases.TEXT.split("autoscaling:")[0] + "autoscaling: {policy: nonsense}\n")
    refused = run(*files, code=2)
    assert "policy 'nonsense'" in refused.stderr
    assert refused.stderr.count("fixed") == 1


def test_files_that_are_no_text_are_named(files: tuple[str, ...], tmp_path: Path) -> None:
    other = tmp_path / "other.json"
    other.write_bytes(b"\xff\xfe\x00")
    for option in ("--error", "--costs"):
        assert "other.json: is no JSON: byte 0 is not UTF-8" in run(*files, option, str(other), code=2).stderr


def test_traffic_of_no_duration_is_named(files: tuple[str, ...]) -> None:
    assert "1 requests, all at second 0" in run(*files, "--limit", "1", code=2).stderr


def test_a_proposal_is_shown_before_its_files_are_written(
    files: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, report = tmp_path / "tuned.yaml", tmp_path / "report.html"
    out.write_text("an older proposal")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)

    def shown(*given: Any) -> None:
        show(*given)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1, before[1]))  # as where a disk is full

    monkeypatch.setattr(tune, "show", shown)
    try:
        result = run(*files, "--trials", "1", "--no-range", "--out", str(out), "--report", str(report), code=1)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert "settings looked at" in result.stdout
    assert f"--out {out}: cannot be written" in result.stderr
    assert f"{report}: cannot be written" in result.stderr
    assert out.read_text() == "an older proposal"
    assert not report.exists()
