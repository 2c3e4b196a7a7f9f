"""`raylane traffic`: figures, a trace file that comes back, the schema; and the same traffic for simulate and bench."""

import json
from pathlib import Path

import pytest
from typer.testing import Result

from cli.bench.run import Settings
from cli.options import TrafficOptions, chosen_requests
from cluster.files import shipped
from planning.workload.traces import read_requests, read_trace
from tests.commands import ran

DAY = shipped("traffic/day.yaml")
SMALL = """
duration_s: 300
streams:
  - {name: chat, rate: {per_s: 3}, prompt: 60, output: 20, prefix: {count: 2, tokens: 128},
     classes: [{name: interactive}], tenants: {count: 3}}
  - {name: nightly, rate: {per_s: 0.5}, prompt: 400, output: 30, classes: [{name: batch}]}
"""


def run(*arguments: str, code: int = 0) -> Result:
    return ran("traffic", *arguments, code=code)


@pytest.fixture
def small(tmp_path: Path) -> Path:
    path = tmp_path / "small.yaml"
    path.write_text(SMALL)
    return path


def test_a_traffic_file_is_shown_and_written(small: Path, tmp_path: Path) -> None:
    out = tmp_path / "trace.jsonl.gz"
    shown = run(str(small), "--out", str(out))
    assert "class: interactive 8" in shown.output
    drawn, read = read_requests(small), read_trace(out)
    assert f"{len(drawn):,} requests" in shown.output
    assert (read.prompt_tokens == drawn.prompt_tokens).all()
    assert run(str(out)).output.splitlines()[1:8] == shown.output.splitlines()[1:8]


def test_the_shipped_day_is_a_day() -> None:
    shown = run(str(DAY), "--from", "43200", "--to", "46800", "--seed", "3")
    assert "class: completion" in shown.output
    assert "region: eu" in shown.output


def test_the_schema_is_that_of_traffic_files() -> None:
    schema = json.loads(run("--schema").output)
    assert {"duration_s", "streams", "regions", "servegen"} <= schema["properties"].keys()
    assert schema["additionalProperties"] is False


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ((), "FILE is missing"),
        (("nowhere.yaml",), "nowhere.yaml"),
        (("nowhere.csv",), "nowhere.csv"),
        ((str(DAY), "--fit-lengths"), "--fit-lengths: needs --context"),
        ((str(DAY), "--from", "90000"), "no requests are left after --from 90000"),
        ((str(DAY), "--limit", "5", "--out", "/nowhere/at/all.jsonl"), "/nowhere/at/all.jsonl"),
    ],
)
def test_bad_input_is_named(arguments: tuple[str, ...], named: str) -> None:
    result = run(*arguments, code=2)
    assert named in result.output + result.stderr


def test_what_the_options_leave_out_is_told(small: Path) -> None:
    shown = run(str(small), "--to", "100", "--context", "300", "--time-scale", "2")
    for kind in ("outside_window", "time_scaled", "context_length_exceeded"):
        assert f"  {kind}: " in shown.output
    assert "shrunk: " in run(str(small), "--context", "300", "--fit-lengths").output
    assert "no request fits --context 16" in run(str(small), "--context", "16", code=2).stderr


def test_the_options_are_applied_in_their_order(small: Path) -> None:
    whole = read_requests(small)
    cut = chosen_requests(small, TrafficOptions(from_s=100, to_s=200, limit=50, time_scale=0.5))
    assert len(cut) == 50
    assert cut.arrived_s[0] == pytest.approx((whole.arrived_s[whole.arrived_s >= 100][0] - 100) / 2)
    assert len(chosen_requests(small, TrafficOptions(load_scale=3))) == 3 * len(whole)


def test_bench_takes_a_traffic_file(small: Path) -> None:
    load = Settings(trace=small, requests=40).load()
    assert load.arrivals_s is not None
    assert (len(load.arrivals_s), load.requests) == (40, 40)
