"""`raylane gauntlet`: tunes every policy in every scenario, judges them on runs that none was tuned on, and tells who
is better where."""

import json
import os
import shlex
import sys
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from autoscaling.policies.registry import POLICIES
from cli.console import console, errors, fail
from cli.gauntlet_tables import show, show_choices
from cli.options import AsJson, Report, check_outputs
from cluster.files import is_special, write_whole
from planning.gauntlet.recorded import TracesError
from planning.gauntlet.registry import SCENARIOS
from planning.gauntlet.results import GauntletPlan, Results, ResultsFileError, merged, read_results
from planning.gauntlet.run import PolicyFailedError
from planning.report.file import ReportFileError, write_report

OURS = "backlog"
_MEMO = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "raylane" / "gauntlet.jsonl"


Policies = Annotated[str | None, typer.Option(help="Only these, separated by commas.")]
Scenarios = Annotated[
    str | None, typer.Option(help="Only these, separated by commas. Default: all except those marked long.")
]
Trials = Annotated[
    int | None,
    typer.Option(
        min=1, max=10_000, help="Settings that each policy may try in each scenario. Default: 4; with --thorough: 25."
    ),
]
Seeds = Annotated[
    int | None, typer.Option(min=1, max=1_000, help="Held-out runs of each scenario. Default: 2; with --thorough: 8.")
]
Jobs = Annotated[int | None, typer.Option(min=1, max=512, help="Parallel processes. Default: the number of cores.")]
Thorough = Annotated[
    bool,
    typer.Option(
        "--thorough", help="The published configuration: many trials and runs, and the long scenarios. Takes hours."
    ),
]
TracesFolder = Annotated[
    Path | None,
    typer.Option(
        envvar="RAYLANE_TRACES", help="The folder of recorded traffic. Without it, scenarios that need it are skipped."
    ),
]
Memo = Annotated[
    Path, typer.Option(help="A file that keeps each run's result, so that an interrupted gauntlet can resume.")
]
Out = Annotated[Path | None, typer.Option(help="Write all results as JSON.")]
Sources = Annotated[
    list[Path] | None,
    typer.Option("--from", help="Run nothing; show results that --out wrote. May be repeated: the results are merged."),
]
ShowList = Annotated[bool, typer.Option("--list", help="List the policies and the scenarios, and exit.")]


def gauntlet(
    policies: Policies = None,
    scenarios: Scenarios = None,
    trials: Trials = None,
    seeds: Seeds = None,
    jobs: Jobs = None,
    thorough: Thorough = False,
    traces: TracesFolder = None,
    memo: Memo = _MEMO,
    out: Out = None,
    report: Report = None,
    source: Sources = None,
    show_list: ShowList = False,
    as_json: AsJson = False,
) -> None:
    """Compare scaling policies on scenarios and recorded days: each is tuned with the same budget and judged on
    held-out runs."""
    if show_list:
        show_choices()
        return
    if source:
        if any(given is not None for given in (policies, scenarios, trials, seeds, jobs)) or thorough:
            fail("--from runs nothing; allowed with it: --out, --report and --json", code=2)
        check_outputs(out=out, report=report)
        _tell(_together(source), out, report, as_json)
        return
    chosen = _chosen("--policies", policies, list(POLICIES))
    outcome = _chosen(
        "--scenarios", scenarios, list(SCENARIOS), [name for name, one in SCENARIOS.items() if thorough or not one.long]
    )
    _check(traces, out, report, memo)
    plan = GauntletPlan(
        tuple(chosen),
        tuple(outcome),
        trials or (25 if thorough else 4),
        2 if thorough else 1,
        seeds or (8 if thorough else 2),
        5 if thorough else 2,
        24 if thorough else 8,
        jobs or os.cpu_count() or 1,
        memo,
        traces,
    )
    _tell(_run(plan), out, report, as_json)


def _tell(results: Results, out: Path | None, report: Path | None, as_json: bool) -> None:
    for name, why in results.left_out.items():
        errors.print(f"[yellow]{name} skipped:[/] {escape(why)}")
    if results.left_out:
        errors.print("the folder of recorded traffic: --traces DIR, or RAYLANE_TRACES")
    if not results.contests or not results.contests[0].contenders:
        fail("no scenario could run")
    policies = [one.policy for one in results.contests[0].contenders]
    ours = OURS if OURS in policies else policies[0]
    if as_json:
        console.print_json(json.dumps(results.as_json()))
    else:
        show(results, ours)
    problems = [] if out is None else _written(out, results)
    problems += [] if report is None else _saved(report, results, ours)
    if problems:
        fail("; ".join(problems), hint="run the command again with other paths; finished runs are kept")


def _written(out: Path, results: Results) -> list[str]:
    """What is wrong, if anything."""
    try:
        write_whole(out, json.dumps(results.as_json()))
    except OSError as error:
        return [f"--out {out}: cannot be written: {error.strerror}"]
    return []


def _chosen(option: str, given: str | None, known: list[str], default: list[str] | None = None) -> list[str]:
    if given is None:
        return known if default is None else default
    names = list(dict.fromkeys(name.strip() for name in given.split(",") if name.strip()))
    unknown = [name for name in names if name not in known]
    if unknown or not names:
        fail(f"{option} {given!r}: {', '.join(unknown) or 'nothing'}: unknown; allowed: {', '.join(known)}", code=2)
    return names


def _check(traces: Path | None, out: Path | None, report: Path | None, memo: Path) -> None:
    """Ends the command where something could not be read or written: better before a long run than after it."""
    if traces is not None and not traces.is_dir():
        fail(f"--traces {traces}: is not a folder", code=2)
    check_outputs(out=out, report=report)
    if is_special(memo):
        fail(f"--memo {memo}: is not a regular file; allowed: a file, or a path where nothing is", code=2)
    try:
        memo.parent.mkdir(parents=True, exist_ok=True)
        memo.open("ab").close()
    except OSError as error:
        fail(f"--memo {memo}: cannot be written: {error.strerror}", code=2)


def _together(paths: list[Path]) -> Results:
    try:
        return merged([_read(path) for path in paths])
    except ValueError as error:
        fail(f"--from {' --from '.join(map(str, paths))}: {error}", code=2)


def _read(path: Path) -> Results:
    try:
        results = read_results(path)
    except ResultsFileError as error:
        fail(f"--from {error}", code=2)
    unknown = [one.scenario for one in results.contests if one.scenario not in SCENARIOS]
    if unknown:
        fail(f"--from {path}: no such scenario in this version: {', '.join(unknown)}", code=2)
    return results


def _run(plan: GauntletPlan) -> Results:
    from planning.gauntlet.gauntlet import (
        Gauntlet,
    )  # optuna and scipy take a second to import, which other commands need not wait for

    columns = (
        TextColumn("[progress.description]{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("runs"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=errors, transient=True) as progress:
        task = progress.add_task(f"{len(plan.policies)} policies, {len(plan.scenarios)} scenarios", total=None)

        def reported(done: float, total: float, last: str) -> None:
            progress.update(task, completed=round(done), total=round(total), description=last)

        try:
            return Gauntlet(plan).run(reported, lambda note: errors.print(f"[yellow]{escape(note)}[/]"))
        except TracesError as error:
            fail(f"--traces: {error}")
        except PolicyFailedError as error:
            fail(str(error))


def _saved(path: Path, results: Results, ours: str) -> list[str]:
    """What is wrong, if anything."""
    from planning.report.gauntlet import GauntletFacts, render  # plotly takes a second to import

    facts = GauntletFacts(
        shlex.join(["raylane", *sys.argv[1:]]), version("raylane"), datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    )
    try:
        write_report(path, render(results, ours, facts))
    except ReportFileError as error:
        return [str(error)]
    errors.print(f"report: {path}")
    return []
