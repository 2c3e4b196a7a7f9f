"""`raylane simulate` of a model that scales: replicas come and go by the spec's policy, in the table, the JSON and the
report."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from typer.testing import Result

from cluster.files import shipped
from deployments.engine_model.cost_file import cost_file, read_cost_file, write_cost_file
from deployments.engine_model.cost_model import CostModel, line, plain_attention
from deployments.engine_model.limits import EngineModelLimits
from tests.commands import ran

pytestmark = pytest.mark.whole

PLAIN = shipped("specs/local.yaml").read_text(encoding="utf-8")
SCALED = PLAIN.replace("      count: 2\n", "      count: 1\n      max: 8\n") + "\nautoscaling:\n  policy: backlog\n"


@pytest.fixture
def files(tmp_path: Path) -> tuple[str, ...]:
    """A spec that scales, a trace whose middle is busy, and a cost file."""
    spec, trace, costs = tmp_path / "spec.yaml", tmp_path / "trace.jsonl", tmp_path / "costs.json"
    spec.write_text(SCALED)
    # Few, for an engine that is slow.
    times = [*range(0, 100_000, 2_000), *range(100_000, 300_000, 120), *range(300_000, 1_300_000, 4_000)]
    rows = [{"timestamp": ms, "input_length": 50 + n % 300, "output_length": 20 + n % 60} for n, ms in enumerate(times)]
    trace.write_text("\n".join(map(json.dumps, rows)))
    model = CostModel(line(0.04, 1e-4), line(0.0, 2e-5), plain_attention(6e-8, 2e-10))
    write_cost_file(costs, cost_file("demo", "a test", "profile", EngineModelLimits(16, 512, 30_000), model))
    return str(spec), "--trace", str(trace), "--costs", str(costs)


def run(*arguments: str, code: int = 0) -> Result:
    return ran("simulate", *arguments, "--no-range", "--no-neighbours", code=code)


def reported(*arguments: str) -> dict[str, object]:
    found: dict[str, object] = json.loads(run(*arguments, "--json").stdout)
    return found


def scaled(found: dict[str, object]) -> dict[str, Any]:
    """The figures of the only group."""
    groups = found["groups"]
    assert isinstance(groups, list)
    (one,) = groups
    assert isinstance(one, dict)
    return one


SCHEDULE = (
    "      max: 8\n      schedule:\n        time_zone: Europe/Berlin\n"
    "        entries: [{name: office, begin: 8:00, end: 18:00, min: 5}]\n"
)


def test_bounds_by_time_of_day_need_a_time_of_day(files: tuple[str, ...]) -> None:
    Path(files[0]).write_text(SCALED.replace("      max: 8\n", SCHEDULE))
    arguments = (*files, "--start-up", "20")
    assert "--start-at: missing; models.demo.replicas.schedule has bounds" in run(*arguments, code=2).stderr
    assert "--start-at 'noon': allowed: a time" in run(*arguments, "--start-at", "noon", code=2).stderr
    shown = run(*arguments, "--start-at", "2026-11-23T07:50")
    assert "bounds by schedule (Europe/Berlin: office: every day 8:00-18:00, min 5)" in shown.output
    figures = scaled(reported(*arguments, "--start-at", "2026-11-23T07:50"))
    assert figures["changes"]["scheduled_min"] >= 1
    night = scaled(reported(*arguments, "--start-at", "2026-11-22T18:00:00+00:00"))
    assert "scheduled_min" not in night["changes"]


def test_replicas_follow_the_load(files: tuple[str, ...]) -> None:
    arguments = (*files, "--start-up", "20")
    figures = scaled(reported(*arguments))
    assert figures["policy"] == "backlog"
    assert figures["max_replicas"] > 1
    assert 1 < figures["mean_replicas"] < figures["max_replicas"]
    assert sum(figures["changes"].values()) > 1
    shown = run(*arguments)
    assert "1 to 8 replicas, scaled by 'backlog'" in shown.output
    assert f"{figures['replica_hours']:.2f}" in shown.output


def test_a_price_on_the_command_line_counts_in_the_figures_of_groups(files: tuple[str, ...]) -> None:
    figures = scaled(reported(*files, "--price-per-gpu-hour", "3600"))
    assert figures["usd"] == pytest.approx(3600 * figures["replica_hours"])


def test_both_bounds_move_by_one_for_one_replica_more(files: tuple[str, ...]) -> None:
    arguments = ["simulate", *files, "--json", "--limit", "400"]
    found = json.loads(ran(*arguments).stdout)
    assert set(found["neighbours"]) == {"one_more"}  # the spec's policy may not go below one
    assert found["neighbours"]["one_more"]["replica_hours"] > found["replica_hours"]["value"]
    low, high = found["replica_hours"]["range"]
    assert low <= found["replica_hours"]["value"] <= high


def test_a_fixed_number_is_kept_when_asked_for(files: tuple[str, ...]) -> None:
    fixed = reported(*files, "--fixed", "--replicas", "3")
    assert "groups" not in fixed
    assert fixed["replicas"] == 3


def test_slow_starts_cost_promises(files: tuple[str, ...]) -> None:
    def in_time(start_up_s: str) -> float:
        lanes = reported(*files, "--start-up", start_up_s)["lanes"]
        assert isinstance(lanes, list)
        return float(lanes[-1]["answered_in_time"])

    assert in_time("300") < in_time("5")


def test_a_simulated_engine_is_played_at_its_speed_as_its_policy_thinks(files: tuple[str, ...]) -> None:
    def outcome(speed: float) -> tuple[float, float]:
        simulated = f"{{costs: {files[-1]}, speed: {speed:g}}}"
        model = f"  - name: demo-simulated\n    engine: simulated\n    simulated: {simulated}\n"
        Path(files[0]).write_text(SCALED.replace("  - name: demo\n", model))
        found = reported(*files, "--start-up", "20")
        lanes = found["lanes"]
        assert isinstance(lanes, list)
        return float(lanes[-1]["tpot_p50_ms"]), float(scaled(found)["replica_hours"])

    slow, fast = outcome(1.0), outcome(4.0)
    assert fast[0] < 0.4 * slow[0]
    assert fast[1] < slow[1]


def test_the_report_has_the_decisions_and_the_replicas(files: tuple[str, ...], tmp_path: Path) -> None:
    report = tmp_path / "report.html"
    run(*files, "--start-up", "20", "--report", str(report))
    page = report.read_text(encoding="utf-8")
    figures = dict(re.findall(r'class="figure" data-plot="(.*?)-plot">(.*?)</script>', page, flags=re.DOTALL))
    assert "1 to 8 replicas, scaled by" in page
    assert "more: replicas, " in figures["decisions"]
    assert "fewer: replicas, consolidate" in figures["decisions"]
    assert "warming" in figures["capacity"]


def test_a_policy_that_there_is_not_is_named(files: tuple[str, ...]) -> None:
    Path(files[0]).write_text(SCALED.replace("policy: backlog\n", "policy: nonsense\n"))
    refused = run(*files, code=2)
    assert "'nonsense'" in refused.output + refused.stderr


GROUPS = """\
    groups:
      - {name: small, settings: {max_model_len: 600}, replicas: {max: 4}, autoscaling: {policy: backlog, costs: COSTS}}
      - {name: large, replicas: {max: 4}, autoscaling: {policy: backlog, costs: COSTS}}
    lanes: {short: [small, large], medium: [large], long: [large]}
"""


def test_groups_have_rows_of_their_own(files: tuple[str, ...], tmp_path: Path) -> None:
    name = "  - name: demo\n"
    rough = tmp_path / "rough.json"
    write_cost_file(rough, read_cost_file(Path(files[-1])).model_copy(update={"basis": "roofline"}))
    groups = GROUPS.replace("COSTS", files[-1], 1).replace("COSTS", str(rough))
    Path(files[0]).write_text(SCALED.replace(name, name + groups, 1))
    assert "the groups of model 'demo' (small, large) have different engines" in run(*files, code=2).stderr
    arguments = (*files[:3], "--start-up", "20")
    for option in ("--replicas", "--price-per-gpu-hour"):
        assert f"{option} 3" in (told := run(*arguments, option, "3", code=2).stderr)
        assert "allowed: for a model with one group" in told
    shown = run(*arguments)
    assert "small: 1 to 4 replicas, scaled by 'backlog'; large: 1 to 4" in shown.output
    assert "replicas by group" in shown.output
    assert "costs: from a profile of the model's layers (a test)" in shown.output
    assert "costs: NOT measured: a roofline (a test)" in shown.output
    report = json.loads(run(*arguments, "--json", "--report", str(tmp_path / "page.html")).stdout)
    assert [one["group"] for one in report["groups"]] == ["small", "large"]
    assert [one["basis"] for one in report["costs"]["groups"].values()] == ["profile", "roofline"]
    assert sum(one["requests"] for one in report["groups"]) == report["lanes"][-1]["requests"]
    assert report["replica_hours"]["value"] >= sum(one["replica_hours"] for one in report["groups"]) > 0
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "Costs: profile</b> (costs.json" in page
    assert "Costs: roofline</b> (rough.json" in page
