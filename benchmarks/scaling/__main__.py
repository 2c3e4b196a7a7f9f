"""Where the backlog policy should rest, and whether it is as good as before: `python -m benchmarks.scaling --traces DIR
--before COMMIT`.

Each run goes through the policy of this checkout and of that commit, by its defaults, in turns; the simulator, the
scheduler and the costs are each side's own. Everything runs in virtual time, so a busy machine changes no figure.
Differences are paired by run, with Student's t interval of 95 %.
"""

import json
import os
import pickle
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.table import Table

from benchmarks.harness import ROOT, JsonFile, console, listed, plain_table, run_facts, write_json
from benchmarks.scaling.cases import RECORDED, RESTING, ScalingCase, scenario_case
from planning.gauntlet.recorded import TracesError
from planning.gauntlet.registry import SCENARIOS
from planning.gauntlet.verdict import MeanInterval, interval

_SIDE = Path(__file__).with_name("side.py")
_ROOMS = ("planning", "autoscaling", "deployments", "cluster")
JUDGED = ("burst", "ramp", "oscillation", "heavy_prompts", "phantom")
DAYS = ("servegen_week", "servegen_r1")

Score = dict[str, Any]


@dataclass(frozen=True, slots=True)
class ScalingJob:
    """One run, for both sides."""

    name: str
    number: int
    case: ScalingCase


def sides(before: str | None, folder: Path) -> dict[str, Path]:
    """The checkouts to import from, by name; that of `before` is unpacked into `folder`. Raises typer.BadParameter."""
    if before is None:
        return {"now": ROOT}
    done = subprocess.run(["git", "archive", before, *_ROOMS], cwd=ROOT, capture_output=True, check=False)
    if done.returncode:
        raise typer.BadParameter(
            f"--before {before}: {done.stderr.decode().strip()}; allowed: a commit of this repository"
        )
    with tarfile.open(fileobj=BytesIO(done.stdout)) as archive:
        archive.extractall(folder, filter="data")
    return {"before": folder, "now": ROOT}


def outcome(job: ScalingJob, tree: Path) -> Score:
    """The score of a run with the policy of that checkout. Raises RuntimeError with what the side said."""
    environment = {**os.environ, "PYTHONPATH": str(tree), "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    case = pickle.dumps((job.case.run, job.case.target, job.case.replica_profile))
    done = subprocess.run(
        [sys.executable, str(_SIDE)], input=case, env=environment, cwd=tree, capture_output=True, check=False
    )
    if done.returncode:
        raise RuntimeError(f"{job.name}, run {job.number}, with the policy of {tree}: {done.stderr.decode()[-2_000:]}")
    found: Score = json.loads(done.stdout)
    return found


def jobs(names: Iterable[str], numbers: int, traces: Path | None) -> list[ScalingJob]:
    """The runs, drawn; those whose recordings are not there are left out with a word."""
    found = []
    for name in names:
        try:
            for number in range(numbers):
                make = RESTING.get(name)
                found.append(
                    ScalingJob(
                        name, number, scenario_case(name, traces, number) if make is None else make(traces, number)
                    )
                )
        except TracesError as error:
            console.print(f"skipped: {name}: {error}", style="yellow")
    return found


def resting(scores: dict[str, dict[str, list[Score]]]) -> Table:
    """Changes of the number, and how they follow each other; over all runs of a name."""
    columns = (
        "run",
        "side",
        "runs",
        "in time",
        "replica-hours",
        "changes",
        "an hour",
        "back within 10 min",
        "closest, s",
    )
    table = plain_table("Where the number should rest", *columns, left=2)
    for name, by_side in scores.items():
        for side, own in by_side.items():
            changes, hours = (sum(one[key] for one in own) for key in ("changes", "hours"))
            closest = min((one["min_apart_s"] for one in own if one["min_apart_s"] is not None), default=None)
            in_time, replica_hours = (
                float(np.mean([one[key] for one in own])) for key in ("attainment", "replica_hours")
            )
            figures = (
                f"{in_time:.2%}",
                f"{replica_hours:.2f}",
                str(changes),
                f"{changes / hours:.1f}",
                str(sum(one["turns"] for one in own)),
            )
            table.add_row(name, side, str(len(own)), *figures, "-" if closest is None else f"{closest:.0f}")
    return table


def compared(scores: dict[str, dict[str, list[Score]]]) -> tuple[Table, list[str]]:
    """Now less before, and the names of what is worse beyond the interval."""
    columns = (
        "scenario",
        "runs",
        "in time before",
        "now",
        "difference, points",
        "replica-hours before",
        "now",
        "difference",
        "flaps",
        "",
    )
    table = plain_table("Now less before", *columns)
    worse = []
    for name, by_side in scores.items():
        old, new = by_side["before"], by_side["now"]
        in_time, hours = (interval(_column(new, key) - _column(old, key)) for key in ("attainment", "replica_hours"))
        bad = in_time.below or hours.above
        if bad:
            worse.append(name)
        flaps = f"{sum(one['flaps'] for one in old)} -> {sum(one['flaps'] for one in new)}"
        means = [f"{_column(one, 'attainment').mean():.3%}" for one in (old, new)]
        paid = [f"{_column(one, 'replica_hours').mean():.3f}" for one in (old, new)]
        table.add_row(
            name,
            str(len(new)),
            *means,
            _shown(in_time, 100.0),
            *paid,
            _shown(hours),
            flaps,
            "worse" if bad else "no worse",
        )
    return table, worse


def _column(scores: list[Score], key: str) -> np.ndarray[Any, np.dtype[np.float64]]:
    return np.array([one[key] for one in scores], dtype=np.float64)


def _shown(found: MeanInterval, times: float = 1.0) -> str:
    half = "no end" if np.isinf(found.half) else f"{times * found.half:.3f}"
    return f"{times * found.mean:+.3f} ± {half}"


def main(
    traces: Annotated[
        Path | None, typer.Option(help="The folder of recorded traffic.", envvar="RAYLANE_TRACES")
    ] = None,
    before: Annotated[str | None, typer.Option(help="The commit to compare with.")] = None,
    runs: Annotated[int, typer.Option(min=1, help="Runs of each scenario.")] = 8,
    days: Annotated[int, typer.Option(min=0, max=6, help="Runs of each recorded day.")] = 2,
    only: Annotated[str | None, typer.Option(help="Names of runs and scenarios, separated by commas.")] = None,
    processes: Annotated[int, typer.Option(min=1, help="Processes at a time.")] = 1,
    json_file: JsonFile = None,
) -> None:
    """Run, compare, and end with status 1 where something is worse beyond its interval."""
    chosen = None if only is None else set(listed("--only", only, sorted({*RESTING, *JUDGED, *DAYS})))
    groups = {
        "resting": [
            *jobs(_of(chosen, RECORDED), days, traces),
            *jobs(_of(chosen, [name for name in RESTING if name not in RECORDED]), min(runs, 4), traces),
        ],
        "judged": []
        if before is None
        else [*jobs(_of(chosen, JUDGED), runs, traces), *jobs(_of(chosen, DAYS), _max(days), traces)],
    }
    found: dict[str, dict[str, dict[str, list[Score]]]] = {}
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(processes) as pool:
        trees = sides(before, Path(folder))
        for group, own in groups.items():
            reported = pool.map(
                lambda one: (one[0].name, one[1], outcome(one[0], trees[one[1]])),
                [(job, side) for job in own for side in trees],
            )
            for name, side, score in reported:
                console.print(
                    f"{name}, {side}: {score['attainment']:.3%}, {score['replica_hours']:.2f} h, {score['changes']} "
                    "changes",
                    style="dim",
                )
                found.setdefault(group, {}).setdefault(name, {}).setdefault(side, []).append(score)
    worse: list[str] = []
    if "resting" in found:
        console.print(resting(found["resting"]))
    if "judged" in found:
        table, worse = compared(found["judged"])
        console.print(table)
    write_json({**run_facts(), "before": before, **found}, json_file)
    raise typer.Exit(1 if worse else 0)


def _of(chosen: set[str] | None, names: Iterable[str]) -> list[str]:
    return [name for name in names if chosen is None or name in chosen]


def _max(days: int) -> int:
    return min(days, *(SCENARIOS[name].held_out or days for name in DAYS))


if __name__ == "__main__":
    typer.run(main)
