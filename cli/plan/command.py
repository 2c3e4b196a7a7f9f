"""`raylane plan`: from a worksheet to replicas by region, group and hour, their costs, and a page that shows them."""

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from cli.console import AsJson, console, errors, fail, print_json
from cli.gateway import Url
from cli.options import check_outputs, write_page
from cli.plan.against import Planner
from cli.plan.against import against as compared
from cli.plan.text_tables import show_table
from cluster.files import shipped, write_whole
from cluster.spec import ClusterSpec, SpecError
from deployments.telemetry.published_error import PublishedError, read_published
from planning.plans.answer import WorksheetPlan
from planning.plans.as_json import as_json
from planning.plans.compare import elsewhere, side_by_side
from planning.plans.outliers import outliers
from planning.plans.planner import PlanLimits, case_from, checked_plan
from planning.plans.question import Case
from planning.plans.rates import QUICK, THOROUGH, RateSource
from planning.plans.result import PlanResult
from planning.plans.tables import basis_lines, cards, tables
from planning.plans.write_spec import check_target, written_spec
from planning.tune.advice import judge
from planning.tune.spec_edit import EditError
from planning.worksheet.load import load_worksheet
from planning.worksheet.sheet import Worksheet

MISSED = 1
"""The exit code where there is no placement, an SLO is missed in the simulation, or a region's loss is not survived."""
_SHARED = 4
"""Replicas that share the requests when a rate is found thoroughly."""
_WORKERS = min(4, os.cpu_count() or 1)
_LINE_S = 5.0


def plan(
    worksheet: Annotated[
        Path | None, typer.Argument(help="The worksheet (docs/planning.md). Default: infra/plans/one-region.yaml.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Write an HTML page (one file, readable offline).")] = None,
    write_spec: Annotated[
        Path | None, typer.Option(help="Write the worksheet's spec with the plan's groups and replicas in it.")
    ] = None,
    smoothing: Annotated[
        float,
        typer.Option(
            min=0,
            max=0.5,
            help="With --write-spec: what schedules with fewer entries may cost, as a share of the plan's cost.",
        ),
    ] = 0.02,
    gap: Annotated[
        float,
        typer.Option(min=0, max=0.5, help="Stop searching when the placement is within this share of the optimum."),
    ] = 0.05,
    time_limit: Annotated[
        float, typer.Option(min=1, help="Seconds to search for a placement; then the best found.")
    ] = 60.0,
    thorough: Annotated[
        bool,
        typer.Option(
            "--thorough",
            help="Find rates with more requests, with replicas that share them, and with the costs' range.",
        ),
    ] = False,
    error: Annotated[
        Path | None, typer.Option(help="The simulator's measured error (`raylane rehearse`). Default: the spec's.")
    ] = None,
    memo: Annotated[
        Path | None, typer.Option(help="Keep the rates that were found in this file, for the next time.")
    ] = None,
    workers: Annotated[int, typer.Option(min=1, help="Processes that find rates.")] = _WORKERS,
    against: Annotated[
        str | None,
        typer.Option(
            metavar="live|FILE",
            help="Compare the worksheet with the last day of the live cluster, a cell's cell.sqlite, or a trace.",
        ),
    ] = None,
    publish: Annotated[
        Path | None, typer.Option(help="With --against: write what is off to this file, for the spec's gateway.drift.")
    ] = None,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Plan a worksheet: which GPUs, how many by region and hour, what they cost, and whether the SLOs are met."""
    check_outputs(out=out, write_spec=write_spec, memo=memo, publish=publish)
    if publish is not None and against is None:
        fail("--publish: needs --against", code=2)
    worksheet = worksheet or shipped("plans/one-region.yaml")
    sheet, spec, case = _read(worksheet)
    if against is not None:
        for option, given in (("--out", out), ("--write-spec", write_spec), ("--thorough", thorough)):
            if given:
                fail(f"{option}: allowed only without --against", code=2)
        raise typer.Exit(compared(against, url, case, _planner(memo, workers), publish, as_json))
    if write_spec is not None:
        try:
            check_target(Path(sheet.spec), write_spec)
        except EditError as problem:
            fail(f"--write-spec {write_spec}: {problem}", code=2)
    known = _errors(spec, case, error)
    _doubt(outliers(case))
    search = THOROUGH if thorough else QUICK
    limits = PlanLimits(gap, time_limit, shared=_SHARED if thorough else 1, workers=workers)
    with _progress() as report:
        try:
            found, checks = checked_plan(case, RateSource(search, thorough, memo), limits, report)
            bought, beside = elsewhere(found, report), side_by_side(found, search, report)
        except ValueError as problem:
            fail(f"{worksheet}: {problem}", code=2)
    result = PlanResult(found, checks, bought, beside, known)
    (_print_json if as_json else _show)(result)
    problems = [*_save_page(out, result, worksheet), *_save_spec(write_spec, result, sheet, smoothing)]
    if problems:
        fail("; ".join(problems), code=2)
    raise typer.Exit(0 if result.good else MISSED)


def _doubt(lines: list[str]) -> None:
    """Asks whether such figures are meant, where somebody can answer."""
    for line in lines:
        errors.print(f"[yellow]is this meant?[/] {escape(line)}")
    if lines and sys.stdin.isatty() and errors.is_terminal and not typer.confirm("Plan it as it is?", err=True):
        raise typer.Exit(2)


def _planner(memo: Path | None, workers: int) -> Planner:
    """Plans as soon as possible: without ranges, and without what limits cost."""

    def planner(case: Case) -> WorksheetPlan:
        limits = PlanLimits(ranged=False, explained=False, workers=workers)
        with _progress() as report:
            return checked_plan(case, RateSource(QUICK, memo=memo), limits, report)[0]

    return planner


def _read(worksheet: Path) -> tuple[Worksheet, ClusterSpec, Case]:
    """Ends the command where something cannot be used."""
    sheet, spec = load_worksheet(worksheet)
    try:
        return sheet, spec, case_from(sheet, spec)
    except ValueError as problem:
        fail(f"{worksheet}: {problem}", code=2)


def _errors(spec: ClusterSpec, case: Case, file: Path | None) -> dict[str, str]:
    """What is known of the simulator's error, by model."""
    place = file or (None if spec.gateway.simulator_error is None else Path(spec.gateway.simulator_error))
    try:
        published = None if place is None else read_published(place)
    except PublishedError as problem:
        fail(f"{'gateway.simulator_error' if file is None else '--error'}: {problem}", code=2)
    found = {}
    for model in dict.fromkeys(stream.model for stream in case.streams):
        trust = judge(published if published is not None and published.model == model else None, model)
        found[model] = "; ".join((trust.error, *trust.doubts)) if trust.doubts else trust.error
    return found


@contextmanager
def _progress() -> Iterator[Callable[[str], None]]:
    """A line on stderr that says what is done; without a terminal, a new line every few seconds."""
    if not errors.is_terminal:
        yield _lines()
        return
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=errors, transient=True) as progress:
        task = progress.add_task("reading", total=None)

        def report(text: str) -> None:
            progress.update(task, description=escape(text))

        yield report


def _lines() -> Callable[[str], None]:
    begin_s = shown_s = time.monotonic()

    def report(text: str) -> None:
        nonlocal shown_s
        now = time.monotonic()
        if now - shown_s >= _LINE_S:
            shown_s = now
            errors.print(f"{now - begin_s:.0f} s: {text}", markup=False, highlight=False)

    return report


def _print_json(result: PlanResult) -> None:
    print_json(as_json(result))


def _show(result: PlanResult) -> None:
    console.print(f"[bold {'green' if result.good else 'red'}]{escape(result.headline)}[/]")
    for clash in result.plan.clashes:
        console.print(f"  [red]clashes:[/] {escape(clash)}")
    for card in cards(result):
        console.print(f"  {card.name}: [bold]{escape(card.value)}[/]{f'  ({escape(card.note)})' if card.note else ''}")
    for one in tables(result):
        console.print()
        show_table(one)
        if one.note:
            console.print(escape(one.note), style="dim")
    console.print()
    for line in basis_lines(result):
        console.print(escape(line))


def _save_page(path: Path | None, result: PlanResult, worksheet: Path) -> list[str]:
    """What is wrong, if anything."""
    if path is None:
        return []
    from planning.report.plan import render  # plotly takes a second to import, which only pages need

    return write_page(path, render(result, worksheet.name))


def _save_spec(path: Path | None, result: PlanResult, sheet: Worksheet, smoothing: float) -> list[str]:
    """What is wrong, if anything."""
    if path is None:
        return []
    if not result.plan.feasible:
        errors.print(f"--write-spec {path}: not written, since there is no placement")
        return []
    try:
        written = written_spec(result.plan, Path(sheet.spec), path, smoothing)
        write_whole(path, written.text)
    except (EditError, SpecError) as problem:
        return [f"--write-spec {path}: {problem}"]
    except OSError as problem:
        return [f"--write-spec {path}: cannot be written: {problem.strerror}"]
    errors.print(f"spec: {path}; {written.in_words()}")
    return []
