"""`raylane plan` as a user types it: from a worksheet to a bill, a page and a spec; and what it refuses."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import Result

from cli.console import console
from cli.plan.text_tables import show_table
from cluster.spec import load_spec
from planning.plans.tables import TextTable
from tests.commands import ran
from tests.planning.plans import small

SLOS = TextTable(
    "SLOs, simulated",
    ("stream", "region", "hour", "replicas", "SLO", "in time", "range", "TTFT p50", "p90", "served by", "verdict"),
    tuple(
        tuple(row.split(" | "))
        for row in (
            "chat-europe | eu-central-1 | 13 | 7 cheap, 2 large | 95.0 % in 2.0 s | 100.00 % | - | 44 ms | 178 ms | "
            "cheap 8 % (100.00 %), large 92 % (100.00 %) | met",
            "chat | us-east-1 | 9 | 4 cheap | 95.0 % in 2.0 s | 99.92 % | 99.8 % to 100 % | 409 ms | 620 ms | "
            "cheap 100 % (99.92 %) | unsure",
        )
    ),
)


def run(*arguments: object, code: int = 0) -> Result:
    return ran("plan", *arguments, code=code, columns=160)


@pytest.mark.whole
def test_a_worksheet_becomes_a_bill_tables_a_page_and_a_spec(tmp_path: Path) -> None:
    offer = {"model": "demo", "usd_per_input_mtok": 1, "usd_per_output_mtok": 2}
    sheet = small.write(tmp_path, small.chat(rates=small.CHAT["rates"][:1]) | {"elsewhere": [offer]})
    page, spec = (tmp_path / name for name in ("plan.html", "planned.yaml"))
    places = ("--out", page, "--write-spec", spec, "--workers", "1", "--memo", tmp_path / "memo.jsonl")
    result = run(sheet, *places, "--json")
    values: dict[str, Any] = json.loads(result.stdout)
    assert values["feasible"]
    assert values["slos"] in ("met", "unsure")
    assert values["totals"]["usd_per_hour"] == pytest.approx(sum(values["totals"]["usd_by_hour"]) / 24)
    checked = {(name, check["region"]) for check in values["checks"] for name in check["replicas"]}
    assert checked == {(group["group"], group["region"]) for group in values["groups"]}
    assert len(values["side_by_side"]) == 2
    assert "Content-Security-Policy" in page.read_text(encoding="utf-8")
    views = load_spec(spec).models[0].views
    assert {view.group.split("-")[0] for view in views} == {group["group"] for group in values["groups"]}
    assert "schedule entries" in result.stderr
    checked = ran("spec", "check", str(spec), columns=160)
    shown = run(small.write(tmp_path, {"candidates": [small.SHEET["candidates"][1]]}), "--workers", "1")
    for words in ("an hour on average; all SLOs are met", "Replicas by hour (UTC)", "$/Mtok in", "never rehearsed"):
        assert words in shown.output


@pytest.mark.whole
def test_where_nothing_arrives_nothing_is_compared_or_bought(tmp_path: Path) -> None:
    offer = {"model": "demo", "usd_per_input_mtok": 1, "usd_per_output_mtok": 2}
    sheet = small.write(tmp_path, small.chat(rates=small.steadily(0.0)) | {"elsewhere": [offer]})
    run(sheet, "--out", tmp_path / "plan.html", "--workers", "1")
    assert "nothing arrives" in (tmp_path / "plan.html").read_text(encoding="utf-8")


@pytest.mark.parametrize("width", [60, 80, 100, 160, 300])
def test_no_word_of_a_table_is_broken(
    width: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(console, "width", width)
    show_table(SLOS)
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= width
    printed = {word.strip(":;") for line in lines for word in line.split()}
    assert {word for row in SLOS.rows for cell in row for word in cell.split()} - {"-"} <= printed
    assert {word for column in SLOS.columns[1:] for word in column.split()} <= printed


@pytest.mark.parametrize(
    ("sheet", "reported"),
    [
        (small.chat(prefix_share=30), "demand.0.prefix_share = 30: allowed"),
        (small.chat(model="other"), "demand.0.model = 'other': the spec has none"),
        ({"spec": "missing.yaml"}, "missing.yaml is not a usable spec"),
        ({"candidates": [small.SHEET["candidates"][1] | {"lanes": ["short"]}]}, "no group serves lane 'long'"),
        ({"candidates": [small.SHEET["candidates"][0] | {"costs": "none.json"}]}, "candidates.0.costs = "),
    ],
)
def test_what_cannot_be_planned_is_refused_before_anything_runs(
    tmp_path: Path, sheet: dict[str, Any], reported: str
) -> None:
    assert reported in run(small.write(tmp_path, sheet), code=2).stderr


@pytest.mark.parametrize("option", ["--out", "--write-spec", "--memo"])
def test_a_place_that_cannot_be_written_is_refused_before_anything_runs(tmp_path: Path, option: str) -> None:
    result = run(small.write(tmp_path), option, tmp_path / "no" / "file", code=2)
    assert f"{option} " in result.stderr
    assert "does not exist" in result.stderr


def test_a_spec_whose_files_are_beside_it_stays_in_its_folder(tmp_path: Path) -> None:
    sheet = small.write(tmp_path, spec={"autoscaling": {"policy": "backlog", "costs": "cheap.json"}})
    (tmp_path / "other").mkdir()
    result = run(sheet, "--write-spec", tmp_path / "other" / "planned.yaml", code=2)
    assert f"names files relative to its own folder; allowed: a file in {tmp_path}" in " ".join(result.stderr.split())


def test_a_published_error_that_cannot_be_read_is_named_by_its_option(tmp_path: Path) -> None:
    assert "--error: " in run(small.write(tmp_path), "--error", tmp_path / "none.json", code=2).stderr
