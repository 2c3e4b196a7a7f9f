"""`raylane gauntlet`: names what there is, refuses what there is not, and runs a small one."""

import json
import os
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from autoscaling.policies.registry import POLICIES
from cli import gauntlet
from cli.main import app
from planning.gauntlet.gauntlet import Gauntlet
from planning.gauntlet.registry import SCENARIOS
from planning.gauntlet.results import Results, read_results
from planning.gauntlet.run import PolicyFailedError
from tests.planning.gauntlet.small import contest_like, point_like, results_like


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["gauntlet", *arguments], env={"COLUMNS": "200", "RAYLANE_TRACES": ""})


def test_it_names_all_policies_and_scenarios() -> None:
    shown = run("--list")
    assert shown.exit_code == 0
    for name in (*POLICIES, *SCENARIOS):
        assert name in shown.output


def test_what_there_is_not_is_refused(tmp_path: Path) -> None:
    (tmp_path / "some.json").write_text(
        json.dumps(results_like(contest_like({"backlog": [point_like([1.0], [1.0])]}, "idle")).as_json())
    )
    (tmp_path / "spoilt.json").write_text((tmp_path / "some.json").read_text().replace('"pick": 0', '"pick": 99'))
    for arguments, named in (
        (("--policies", "backlog,magic"), "magic"),
        (("--scenarios", ","), "--scenarios"),
        (("--traces", str(tmp_path / "nowhere")), "nowhere"),
        (("--report", str(tmp_path)), "is a folder"),
        (("--out", str(tmp_path / "no" / "file.json")), "does not exist"),
        (("--out", str(tmp_path)), "is a folder"),
        (("--from", str(tmp_path / "none.json")), "cannot be read"),
        (("--from", __file__), "test_gauntlet.py"),
        (("--from", str(tmp_path / "spoilt.json")), "backlog.pick = 99"),
        (("--report", "/dev/full"), "--report /dev/full: is not a regular file"),
        (("--out", "/dev/full"), "--out /dev/full: is not a regular file"),
        (("--from", str(tmp_path / "none.json"), "--trials", "3"), "runs nothing"),
        (("--from", str(tmp_path / "some.json"), "--from", str(tmp_path / "some.json")), "in two of them: idle"),
    ):
        refused = run(*arguments, "--memo", str(tmp_path / "memo.jsonl"))
        assert refused.exit_code == 2
        assert named in refused.output


def test_a_memo_is_a_regular_file_or_nothing_yet(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for place in (tmp_path, tmp_path / "pipe", Path("/dev/full")):
        refused = run("--memo", str(place))
        assert refused.exit_code == 2
        assert f"--memo {place}: is not a regular file" in refused.output


@pytest.mark.whole
def test_a_small_one(tmp_path: Path) -> None:
    out, report = tmp_path / "out.json", tmp_path / "report.html"
    arguments = (
        "--policies",
        "backlog,keda",
        "--scenarios",
        "idle,azure_chat",
        "--trials",
        "1",
        "--seeds",
        "2",
        "--jobs",
        "1",
    )
    files = ("--memo", str(tmp_path / "memo.jsonl"), "--out", str(out), "--report", str(report))
    shown = run(*arguments, *files)
    assert shown.exit_code == 0, shown.output
    assert "azure_chat skipped" in shown.output
    assert "--traces DIR" in shown.output
    assert "idle" in shown.output
    reported = json.loads(out.read_text())
    assert {one["policy"] for one in reported["contests"][0]["contenders"]} == {"backlog", "keda"}
    assert "keda" in report.read_text()
    printed = run(*arguments, "--memo", str(tmp_path / "memo.jsonl"), "--json")
    assert '"contests"' in printed.output
    again = tmp_path / "again.html"
    redrawn = run("--from", str(out), "--report", str(again))
    assert redrawn.exit_code == 0, redrawn.output
    assert "backlog in each scenario" in redrawn.output
    assert "keda" in again.read_text()


def test_a_damaged_recording_is_told_without_a_traceback(tmp_path: Path) -> None:
    traces = tmp_path / "traces"
    traces.mkdir()
    (traces / "azure2023_code.csv.gz").write_bytes(b"\x1f\x8b torn")
    shown = run(
        "--scenarios",
        "azure_code",
        "--policies",
        "fixed",
        "--jobs",
        "1",
        "--traces",
        str(traces),
        "--memo",
        str(tmp_path / "memo.jsonl"),
    )
    assert shown.exit_code == 1
    assert isinstance(shown.exception, SystemExit)
    assert "azure2023_code.csv.gz" in shown.output


def test_what_cannot_be_written_in_the_end_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "out.json"
    monkeypatch.setattr(
        gauntlet,
        "_run",
        lambda plan: out.mkdir() or results_like(contest_like({"backlog": [point_like([1.0], [1.0])]}, "idle")),
    )
    report = tmp_path / "report.html"
    shown = run("--out", str(out), "--report", str(report), "--memo", str(tmp_path / "memo.jsonl"))
    assert shown.exit_code == 1
    assert isinstance(shown.exception, SystemExit)
    assert "backlog in each scenario" in shown.output
    assert f"--out {out}: cannot be written" in shown.output
    assert report.exists()


def test_results_are_written_in_one_move(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    results, kept, out = (
        results_like(contest_like({"backlog": [point_like([1.0], [1.0])]}, "idle")),
        tmp_path / "kept.json",
        tmp_path / "out.json",
    )
    monkeypatch.setattr(gauntlet, "_run", lambda plan: results)
    out.write_text("an older one")
    os.link(out, kept)
    assert run("--out", str(out), "--memo", str(tmp_path / "memo.jsonl")).exit_code == 0
    assert kept.read_text() == "an older one"
    assert read_results(out) == results


def test_a_policy_that_never_answers_is_told_without_a_traceback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(self: Gauntlet, *reported: object) -> Results:
        raise PolicyFailedError("policy 'x' failed")

    monkeypatch.setattr(Gauntlet, "run", fails)
    shown = run("--memo", str(tmp_path / "memo.jsonl"))
    assert shown.exit_code == 1
    assert isinstance(shown.exception, SystemExit)
    assert "policy 'x' failed" in shown.output


def test_one_run_has_no_interval(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    policies = {"backlog": [point_like([0.96], [2.0])], "hpa": [point_like([0.99], [1.0])]}
    monkeypatch.setattr(
        gauntlet,
        "_run",
        lambda plan: results_like(contest_like(policies, "idle"), contest_like(policies, "start_up_0")),
    )
    shown = run("--memo", str(tmp_path / "memo.jsonl"))
    assert "no interval, so every verdict" in shown.output
    assert "0>1=0~0<" in shown.output
    assert re.search(r"backlog +96\.00 +never", shown.output)
