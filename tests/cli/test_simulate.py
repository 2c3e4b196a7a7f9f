"""`raylane simulate`: a table and JSON from a spec, a trace and a cost file; bad input is named."""

import json
import re
from pathlib import Path

import pytest
from typer.testing import Result

from cluster.files import shipped
from deployments.engine_model.cost_file import cost_file, write_cost_file
from deployments.engine_model.cost_model import CostModel, line, plain_attention
from deployments.engine_model.limits import EngineModelLimits
from deployments.telemetry.published_error import write_published
from tests.commands import ran
from tests.planning.tune.cases import known_error

SPEC = str(shipped("specs/local.yaml"))


@pytest.fixture
def files(tmp_path: Path) -> tuple[str, ...]:
    """A trace and a cost file."""
    trace = tmp_path / "trace.jsonl"
    rows = [{"timestamp": 20 * n, "input_length": 50 + n % 900, "output_length": 20 + n % 60} for n in range(400)]
    trace.write_text("\n".join(json.dumps(row) for row in rows))
    costs = tmp_path / "costs.json"
    model = CostModel(line(0.004, 2e-5), line(0.0, 1e-5), plain_attention(3e-8, 1e-10))
    write_cost_file(
        costs, cost_file("demo", "a test", "profile", EngineModelLimits(16, 512, 30_000), model, error=0.034)
    )
    return "--trace", str(trace), "--costs", str(costs)


ALONE = ("--no-range", "--no-neighbours")


def run(*arguments: str, code: int = 0) -> Result:
    """Without the runs beside the one that is asked for, where the arguments are not about them."""
    return ran("simulate", *arguments, *ALONE, code=code)


def test_the_table_and_the_json_tell_the_same(files: tuple[str, ...]) -> None:
    shown = run(SPEC, *files)
    assert "2 replicas" in shown.output
    assert "off by 3.4%" in shown.output
    report = json.loads(run(SPEC, *files, "--json").stdout)
    assert [lane["name"] for lane in report["lanes"]] == ["short", "medium", "long", "all"]
    assert report["lanes"][-1]["requests"] == 400
    assert f"{report['lanes'][-1]['ttft_p99_ms']:.0f} ms" in shown.output


@pytest.mark.whole
def test_more_load_waits_longer_and_more_replicas_wait_less(files: tuple[str, ...]) -> None:
    def p99(*more: str) -> float:
        return float(json.loads(run(SPEC, *files, "--json", *more).stdout)["lanes"][-1]["ttft_p99_ms"])

    assert p99("--load-scale", "4") > 2 * p99()
    assert p99("--load-scale", "4") > 2 * p99("--load-scale", "4", "--replicas", "8")


@pytest.mark.whole
def test_prefix_hits_and_times_between_tokens_are_told(files: tuple[str, ...], tmp_path: Path) -> None:
    traffic, spec, page = tmp_path / "traffic.yaml", tmp_path / "spec.yaml", tmp_path / "report.html"
    traffic.write_text(
        "duration_s: 60\nstreams: [{name: a, rate: {per_s: 4}, prompt: 60, output: 9, classes: [{name: batch}], "
        "prefix: {count: 2, tokens: 512}}]\n"
    )
    classes = "classes: [{name: interactive, ttft_ms: 500}, {name: batch, ttft_ms: 30000, itl_ms: 50}]\n"
    spec.write_text(re.sub(r"(?m)^classes:\n(?:[ -].*\n)+", "", Path(SPEC).read_text(encoding="utf-8")) + classes)
    arguments = (str(spec), "--trace", str(traffic), "--costs", files[-1])
    report = json.loads(run(*arguments, "--json", "--report", str(page)).stdout)
    assert 0.7 < report["prefix_hits"] < 0.9  # all but the first of two prompts of 512 tokens find it
    assert [(one["name"], one["itl_in_time"]) for one in report["classes"]] == [("batch", 1.0)]
    shown = run(*arguments).output
    assert "within itl_ms: batch 100.00 %" in shown
    assert f"prefix hits: {report['prefix_hits']:.1%} of the prompt tokens" in shown
    figures = dict(
        re.findall(r'class="figure" data-plot="(.*?)-plot">(.*?)</script>', page.read_text(), flags=re.DOTALL)
    )
    drawn = {trace["name"] for trace in json.loads(figures["tokens"])["data"]}
    assert drawn == {"p50", "p99", "batch met", "prefix hits"}


def test_a_traffic_file_is_simulated_with_its_classes(files: tuple[str, ...], tmp_path: Path) -> None:
    traffic = tmp_path / "traffic.yaml"
    text = (
        "duration_s: 60\nstreams: [{name: a, rate: {per_s: 4}, prompt: 60, output: 9, classes: [{name: batch}], "
        "prefix: {count: 2, tokens: 128}}]\n"
    )
    traffic.write_text(text)
    arguments = (SPEC, "--trace", str(traffic), "--costs", files[-1], "--json")
    report = json.loads(run(*arguments, "--seed", "2").stdout)
    assert report["lanes"][-1]["answered_in_time"] == 1.0
    assert 150 < report["lanes"][-1]["requests"] < 350
    assert json.loads(run(*arguments, "--seed", "2", "--limit", "7").stdout)["lanes"][-1]["requests"] == 7
    traffic.write_text(text.replace("batch", "gold"))
    refused = run(*arguments, code=2)
    assert "class = 'gold'" in refused.output + refused.stderr


LONG = [{"timestamp": 20 * n, "input_length": 20_000 if n % 4 == 3 else 300, "output_length": 20} for n in range(100)]


def long_trace(folder: Path) -> str:
    """A quarter of its prompts is longer than the model's context, and one request stands too late."""
    path = folder / "long.jsonl"
    hashed = [
        {**row, "hash_ids": [0, 1, *range(10, 10 + int(row["input_length"]) // 512 - 1)]}
        for row in (*LONG[1:], LONG[0])
    ]
    path.write_text("\n".join(json.dumps(row) for row in hashed))
    return str(path)


@pytest.mark.whole
def test_what_is_too_long_is_rejected_and_told(files: tuple[str, ...], tmp_path: Path) -> None:
    arguments = (SPEC, "--trace", long_trace(tmp_path), "--costs", files[-1])
    shown = run(*arguments)
    assert "changes to the trace:" in shown.output
    assert "context_length_exceeded: 25 of 100 requests (25.0 %): rejected" in shown.output
    assert "sorted: 1 of 100 requests" in shown.output
    page = tmp_path / "report.html"
    report = json.loads(run(*arguments, "--json", "--report", str(page)).stdout)
    assert "Rejected: 25 of 100 requests (25.0 %)</b>: prompt and answer" in page.read_text(encoding="utf-8")
    assert "25 of them too long; 0 more expired in a lane" in page.read_text(encoding="utf-8")
    whole = report["lanes"][-1]
    assert (whole["requests"], whole["rejected"]) == (100, 25)
    assert sum(lane["requests"] for lane in report["lanes"][:-1]) == 75
    assert report["rejections"] == {"context_length_exceeded": 25}
    told = {one["change"]: (one["requests"], one["of"], one["rejected"]) for one in report["changes"]}
    assert told["context_length_exceeded"] == (25, 100, True)
    assert told["sorted"] == (1, 100, False)
    assert "shrunk" not in told


@pytest.mark.whole
def test_lengths_are_shrunk_only_where_that_is_asked_for(files: tuple[str, ...], tmp_path: Path) -> None:
    arguments = (SPEC, "--trace", long_trace(tmp_path), "--costs", files[-1], "--fit-lengths")
    page = tmp_path / "report.html"
    report = json.loads(run(*arguments, "--json", "--report", str(page)).stdout)
    assert (report["lanes"][-1]["requests"], report["rejections"]) == (100, {})
    told = {one["change"]: one["what"] for one in report["changes"]}
    assert told["shrunk"].startswith("all lengths multiplied by 0.4")
    assert "% of their tokens can still be found in a cache" in told["prefixes_cut"]
    text = page.read_text(encoding="utf-8")
    assert "What was changed in the trace" in text
    assert told["shrunk"] in text


@pytest.mark.whole
def test_each_figure_has_a_range_and_neighbours(files: tuple[str, ...], tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    report = json.loads(ran("simulate", SPEC, *files, "--json", "--report", str(page)).stdout)
    assert report["costs"]["range"] == {"origin": "profile of this GPU", "low": 0.9, "high": 1.1}
    for lane in report["lanes"]:
        for name, (low, high) in lane["range"].items():
            assert low <= lane[name] <= high
    whole = report["lanes"][-1]
    assert whole["range"]["ttft_p50_ms"][0] < whole["ttft_p50_ms"] < whole["range"]["ttft_p50_ms"][1]
    assert set(report["neighbours"]) == {"one_fewer", "one_more"}
    assert report["neighbours"]["one_fewer"]["ttft_p90_ms"] > report["neighbours"]["one_more"]["ttft_p90_ms"]
    text = page.read_text(encoding="utf-8")
    assert "With one replica fewer or more" in text
    assert f"<small>{whole['range']['ttft_p50_ms'][0]:.0f} ms to " in text
    shown = ran("simulate", SPEC, *files)
    assert f"({whole['range']['ttft_p50_ms'][0]:.0f} ms to {whole['range']['ttft_p50_ms'][1]:.0f} ms)" in shown.output
    assert "one replica fewer" in shown.output


def test_the_other_runs_can_be_switched_off(files: tuple[str, ...]) -> None:
    plain = json.loads(run(SPEC, *files, "--json").stdout)
    assert (plain["costs"]["range"], plain["neighbours"], plain["lanes"][-1]["range"]) == (None, {}, {})


def test_what_the_spec_asks_for_and_is_not_modelled_comes_first(files: tuple[str, ...], tmp_path: Path) -> None:
    spec = tmp_path / "spec.yaml"
    text = Path(SPEC).read_text(encoding="utf-8")
    length = "      max_model_len: 8192\n"
    spec.write_text(text.replace(length, f"{length}      speculative: {{method: ngram}}\n"))
    shown = run(str(spec), *files)
    assert shown.output.index("speculation: models.demo.settings.speculative") < shown.output.index("TTFT p50")
    report = json.loads(run(str(spec), *files, "--json").stdout)
    assert [one["kind"] for one in report["not_modelled"]] == ["speculation"]


@pytest.mark.whole
def test_the_report_tells_the_same_as_the_table(files: tuple[str, ...], tmp_path: Path) -> None:
    report = tmp_path / "report.html"
    shown = run(SPEC, *files, "--report", str(report), "--price-per-gpu-hour", "3600").output
    assert shown.index("TTFT p50") < shown.index(f"report: {report}"), (
        "what was simulated is told whatever the disk does"
    )
    page = report.read_text(encoding="utf-8")
    reported = json.loads(run(SPEC, *files, "--json").stdout)
    assert "Keeps its SLO" in page or "Misses its SLO" in page
    assert f"{reported['lanes'][-1]['ttft_p50_ms']:.0f} ms" in page
    assert re.search(rf"\${2 * reported['simulated_s']:,.0f}\.", page)  # two replicas, a dollar a second each


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("nowhere.yaml",), "nowhere.yaml"),
        ((SPEC, "--report", "/nowhere/report.html"), "/nowhere does not exist"),
        ((SPEC, "--report", "/"), "is a folder"),
        ((SPEC, "--report", "/dev/null/report.html"), "does not exist"),
        ((SPEC, "--published-error", "nowhere.json"), "nowhere.json"),
        ((SPEC, "--model", "nobody"), "nobody"),
        ((SPEC, "--costs", "nowhere.json"), "nowhere.json"),
        ((SPEC, "--trace", "nowhere.csv"), "nowhere.csv"),
        ((SPEC, "--replicas", "0"), "replicas"),
        ((SPEC, "--start-at", "nonsense"), "--start-at 'nonsense': allowed: a time"),
    ],
)
def test_bad_input_is_named(files: tuple[str, ...], arguments: tuple[str, ...], named: str) -> None:
    result = run(arguments[0], *files, *arguments[1:], code=2)  # the last of an option counts
    assert named in result.output + result.stderr


def test_what_several_regions_do_not_use_is_refused(files: tuple[str, ...], tmp_path: Path) -> None:
    error, spec = tmp_path / "error.json", str(shipped("specs/three-regions.yaml"))
    write_published(error, known_error(0.1))
    refused = run(spec, *files, "--published-error", str(error), code=2).stderr
    assert f"--published-error {error}: allowed: for one region" in refused


def test_times_that_are_hardly_seconds_are_told(files: tuple[str, ...], tmp_path: Path) -> None:
    trace = tmp_path / "ms.jsonl"
    rows = [{"arrived_s": at, "prompt_tokens": 9, "output_tokens": 9} for at in (1.7e12, 1.7e12 + 20 * 86_400)]
    trace.write_text("\n".join(json.dumps(row) for row in ({"raylane_trace": 1, "chunk_tokens": 0}, *rows)))
    told = run(SPEC, *files, "--trace", str(trace)).stderr
    assert "ms.jsonl: 20 days; are its times in seconds?" in told
    refused = run(SPEC, *files, "--trace", str(trace), "--time-scale", "20", code=2).stderr
    assert "ms.jsonl: its last request comes 400 days after its first; allowed: at most 366" in refused


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("version", 2),
        ("kv_read_s", -1),
        ("basis", "guessed"),
        ("dense", {"at": [1, 1], "seconds": [1, 2]}),
        ("more", 1),
    ],
)
def test_a_bad_cost_file_is_refused(files: tuple[str, ...], key: str, value: object) -> None:
    content = json.loads(Path(files[-1]).read_text())
    Path(files[-1]).write_text(json.dumps({**content, key: value}))
    result = run(SPEC, *files, code=2)
    assert key in result.output + result.stderr


def test_costs_from_data_sheets_can_be_simulated_and_say_so(files: tuple[str, ...], tmp_path: Path) -> None:
    out = str(tmp_path / "roofline.json")
    ran("costs", SPEC, "--out", out, "--gpu", "L40S")
    assert "NOT measured" in run(SPEC, "--trace", files[1], "--costs", out).output
    refused = ran("costs", SPEC, "--out", out, code=2)
    assert "cpu" in refused.output + refused.stderr


@pytest.mark.parametrize("place", ["none/costs.json", "folder", "/dev/full"])
def test_costs_that_cannot_be_written_are_told_by_their_option(place: str, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    refused = ran("costs", SPEC, "--out", tmp_path / place, "--gpu", "L40S", code=2)
    assert f"--out {tmp_path / place}: " in refused.output + refused.stderr
