"""How sides are compared, and that a run goes through the policy of another checkout."""

import io
from pathlib import Path

import pytest
import typer
from rich.console import Console

from benchmarks.scaling.__main__ import ScalingJob, compared, jobs, outcome, resting, sides
from benchmarks.scaling.cases import RESTING, scenario_case
from planning.scoring import Score
from tests.planning.gauntlet.small import score_like, small_run

ROOT = Path(__file__).parents[2]


def reported(attainment: float, hours: float) -> dict[str, object]:
    score: Score = score_like(attainment, hours)
    return {
        **{name: getattr(score, name) for name in ("attainment", "replica_hours", "flaps", "changes")},
        "hours": 1.0,
        "turns": 2,
        "min_apart_s": 7.0,
    }


def verdict(old: list[tuple[float, float]], new: list[tuple[float, float]]) -> list[str]:
    return compared({"run": {"before": [reported(*one) for one in old], "now": [reported(*one) for one in new]}})[1]


def test_what_is_worse_on_either_axis_beyond_its_interval_is_named() -> None:
    before = [(0.97, 2.0), (0.98, 2.2), (0.96, 2.1)]
    assert verdict(before, before) == []
    assert verdict(before, [(a, h - 0.1) for a, h in before]) == []
    assert verdict(before, [(a, h + 0.1) for a, h in before]) == ["run"]
    assert verdict(before, [(a - 0.01, h) for a, h in before]) == ["run"]
    assert verdict(before, [(0.95, 2.3), (0.99, 2.0), (0.965, 2.1)]) == []


def test_changes_are_told_an_hour_with_the_closest_two() -> None:
    page = Console(file=io.StringIO(), width=200)
    page.print(resting({"run": {"now": [reported(0.9, 2.0), reported(0.9, 4.0)]}}))
    assert isinstance(page.file, io.StringIO)
    row = next(line for line in page.file.getvalue().splitlines() if "run" in line and "now" in line)
    assert [cell.strip() for cell in row.split("│")[1:-1]] == [
        "run",
        "now",
        "2",
        "90.00%",
        "3.00",
        "8",
        "4.0",
        "4",
        "7",
    ]


def test_a_commit_that_there_is_not_is_refused_by_its_name(tmp_path: Path) -> None:
    with pytest.raises(typer.BadParameter, match=r"--before nothing-of-the-kind: .*; allowed: a commit"):
        sides("nothing-of-the-kind", tmp_path)
    assert sides(None, tmp_path) == {"now": ROOT}


def test_plays_without_their_recordings_are_left_out() -> None:
    assert jobs(["m-mid-outage"], 1, None) == []
    assert set(RESTING) >= {"m-mid-outage", "quiet-half-hour", "trickle-1", "trickle-2", "outage"}


@pytest.mark.whole
def test_a_side_plays_what_it_is_given() -> None:
    case = scenario_case("idle", None, 0)
    small = ScalingJob("small", 0, type(case)(small_run(), 0.95, case.replica_profile))
    score = outcome(small, ROOT)
    assert score["requests"] == len(small.case.run.workload)
    assert 0 < score["attainment"] <= 1
    assert score["changes"] == len(score["changed"])
