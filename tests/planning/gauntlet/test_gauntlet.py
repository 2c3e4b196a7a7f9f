"""A whole small gauntlet, in processes of its own; run again, it runs nothing."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from autoscaling.policies.registry import POLICIES
from planning.gauntlet.gauntlet import Gauntlet
from planning.gauntlet.memo import policy_hash, world_hash
from planning.gauntlet.recorded import TracesError
from planning.gauntlet.results import GauntletPlan

pytestmark = pytest.mark.whole

PLAN = GauntletPlan(("backlog", "fixed"), ("idle",), trials=2, training=1, held_out=2, points=2, sims=7, jobs=1)


def test_a_plan_is_run_once_and_remembered(tmp_path: Path) -> None:
    plan = replace(PLAN, memo=tmp_path / "memo.jsonl")
    reported: list[float] = []
    results = Gauntlet(plan).run(lambda done, total, last: reported.append(done / total))
    assert reported == sorted(reported)
    assert reported[-1] <= 1.0
    assert results.about["world"] == world_hash()
    assert results.about["policies"] == {policy: policy_hash(POLICIES[policy]) for policy in plan.policies}
    contest = results.of("idle")
    assert contest is not None
    assert [one.policy for one in contest.contenders] == ["backlog", "fixed"]
    for contender in contest.contenders:
        assert 1 <= len(contender.points) <= 2
        assert all(len(point.scores) == 2 for point in contender.points)
        assert contender.picked in contender.points
    assert (contest.oracle_hours <= contest.known_hours + 1e-9).all()
    before = (tmp_path / "memo.jsonl").read_text()
    again = Gauntlet(plan).run()
    assert (tmp_path / "memo.jsonl").read_text() == before
    assert again == results


def test_what_needs_recordings_is_left_out_with_a_word_and_what_they_give_is_played(traces: Path) -> None:
    plan = replace(PLAN, policies=("fixed",), scenarios=("azure_code",), trials=1, held_out=1, points=1, sims=1)
    results = Gauntlet(plan).run()
    assert not results.contests
    assert "azure2023_code.csv.gz" in results.left_out["azure_code"]
    results = Gauntlet(replace(plan, traces=traces)).run()
    assert [one.scenario for one in results.contests] == ["azure_code"]
    assert any("left out at random" in change for change in results.contests[0].changes)


def test_a_damaged_recording_is_named_before_anything_is_played(traces: Path, tmp_path: Path) -> None:
    folder = tmp_path / "traces"
    shutil.copytree(traces, folder)
    damaged = folder / "azure2023_code.csv.gz"
    damaged.write_bytes(damaged.read_bytes()[:2_000])
    plan = replace(PLAN, scenarios=("idle", "azure_code"), traces=folder, memo=tmp_path / "memo.jsonl")
    with pytest.raises(TracesError, match=r"azure2023_code\.csv\.gz"):
        Gauntlet(plan).run()
    assert not (tmp_path / "memo.jsonl").exists()


@pytest.mark.long
def test_a_swept_scenario_takes_what_was_found_in_another(traces: Path, tmp_path: Path) -> None:
    plan = replace(
        PLAN, policies=("fixed",), scenarios=("start_up_0", "start_up_15"), held_out=1, points=1, sims=1, traces=traces
    )
    results = Gauntlet(replace(plan, memo=tmp_path / "memo.jsonl")).run()
    assert [one.scenario for one in results.contests] == ["start_up_0", "start_up_15"]
    assert all(len(point.scores) == 1 for one in results.contests for point in one.contenders[0].points)
    rows = [json.loads(line) for line in (tmp_path / "memo.jsonl").read_text().splitlines()]
    assert {row["scenario"] for row in rows if row.get("training")} == {"start_up_60"}
    known = [row for row in rows if row["policy"] == "known rate"]
    assert sorted(row["scenario"] for row in known if "draw" not in row) == ["start_up_0", "start_up_15"], (
        "a measure is fitted where it measures"
    )
    assert sorted(row["scenario"] for row in known if "draw" in row) == ["start_up_0", "start_up_15"]


def test_a_memo_that_cannot_be_written_is_told_once_and_ends_nothing(tmp_path: Path) -> None:
    plan = replace(PLAN, policies=("fixed",), trials=1, sims=1, jobs=2, memo=tmp_path / "gone" / "memo.jsonl")
    warned: list[str] = []
    results = Gauntlet(plan).run(warned=warned.append)
    assert [one.scenario for one in results.contests] == ["idle"]
    assert len(warned) == 1
    assert str(plan.memo) in warned[0]


MAIN = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); from cli.main import app; app()"
"""A shell that starts its tests in the background has them ignore Ctrl-C, and what they start, too."""


@pytest.mark.parametrize(
    ("number", "to_all", "code"), [(signal.SIGINT, True, 130), (signal.SIGINT, False, 130), (signal.SIGKILL, False, -9)]
)
def test_whatever_ends_the_command_ends_its_processes(
    number: signal.Signals, to_all: bool, code: int, tmp_path: Path
) -> None:
    """In the middle of a job that would go on for hours."""
    memo, said = tmp_path / "memo.jsonl", tmp_path / "said.txt"
    arguments = (
        "--policies",
        "backlog",
        "--scenarios",
        "idle",
        "--trials",
        "10000",
        "--jobs",
        "2",
        "--memo",
        str(memo),
    )
    begin = [sys.executable, "-c", MAIN, "gauntlet", *arguments]
    with (
        said.open("w") as output,
        subprocess.Popen(begin, stdout=output, stderr=output, start_new_session=True) as command,
    ):
        found = psutil.Process(command.pid)
        try:
            while not memo.exists() or not memo.read_text():
                assert command.poll() is None, said.read_text()
                time.sleep(0.05)
            own = found.children(recursive=True)
            assert len(own) >= 3  # two that work, and what keeps count of their locks
            (os.killpg if to_all else os.kill)(command.pid, number)
            assert command.wait(60) == code
            assert not psutil.wait_procs(own, 60)[1]
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(command.pid, signal.SIGKILL)
    assert "Traceback" not in said.read_text()
    assert "Error" not in said.read_text()
