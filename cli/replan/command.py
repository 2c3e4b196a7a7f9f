"""`raylane replan`: floors and ceilings for the autoscalers of all cells, from a worksheet, from what arrives, and from
prices."""

import json
import time
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from cli.console import console, errors, fail, seconds_of
from cli.gateway import AsJson
from cli.options import check_outputs
from cli.replan.cells import Cells
from cli.replan.loop import LOOK_EVERY_S, LOST_AFTER_S, ReplanLoop, Timing
from cli.replan.output import as_json as plan_as_json
from cli.replan.output import price_line, show, why_line
from cluster.artifacts import ArtifactError
from cluster.spec import ClusterSpec, SpecError
from deployments.engine_model.cost_file import CostFileError
from planning.plans.planner import PlanError
from planning.plans.rates import QUICK, RateSource
from planning.replan import Observed, ReplanSettings, SiteKey
from planning.replan.from_worksheet import ReplanCase, prices_now, replan_case
from planning.replan.log import ReplanLog
from planning.workload.trace import TraceError
from planning.worksheet import Worksheet, WorksheetError, load_worksheet

NOT_ORDERED = 1
"""The exit code of `--once` where a cell did not answer, or did not take its bounds."""
_SHORTEST_S = 5.0
_LONGEST_EVERY_S = 1_200.0
"""Three periods are the longest for which a cell takes bounds."""

SheetFile = Annotated[Path, typer.Argument(metavar="WORKSHEET", help="The worksheet (docs/planning.md).")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print one re-plan and its price; order nothing.")]
Once = Annotated[bool, typer.Option("--once", help="Re-plan once.")]
Every = Annotated[str, typer.Option(help="The time from re-plan to re-plan: 5m; at most 20m.")]
Window = Annotated[str, typer.Option(help="The time over which arrivals are counted.")]
Endpoints = Annotated[
    list[str] | None,
    typer.Option("--endpoint", metavar="REGION=URL", help="A region's gateways. Default: its `endpoint` in the spec."),
]
LogFile = Annotated[Path | None, typer.Option("--log", help="Append every re-plan to this file (`raylane replay`).")]
MemoFile = Annotated[Path | None, typer.Option("--memo", help="Keep the rates that were found in this file.")]
Margin = Annotated[float, typer.Option(min=0, max=10, help="The share that a move must save.")]
Step = Annotated[int, typer.Option(min=1, help="Replicas by which a floor may change at once, at least.")]

_DEFAULTS = ReplanSettings()
_Problem = (SpecError, WorksheetError, PlanError, TraceError, CostFileError, ArtifactError, ValueError, OSError)


def replan(
    worksheet: SheetFile,
    dry_run: DryRun = False,
    once: Once = False,
    every: Every = "5m",
    window: Window = "1m",
    endpoint: Endpoints = None,
    log: LogFile = None,
    memo: MemoFile = None,
    margin: Margin = _DEFAULTS.margin,
    step: Step = _DEFAULTS.step,
    as_json: AsJson = False,
) -> None:
    """Re-plan the replicas of all regions while they run: by the expected demand, prices, and what can be had.

    Each cell gets floors and ceilings for three periods; without a further re-plan the spec's own bounds hold again.
    """
    check_outputs(memo=memo, log=log)
    timing = Timing(_span("--every", every, _LONGEST_EVERY_S), _span("--window", window, _LONGEST_EVERY_S))
    source = _Source(worksheet, memo, endpoint)
    cells = Cells(source.endpoints)
    settings = ReplanSettings(margin=margin, step=step)
    try:
        loop = ReplanLoop(
            source.case, cells, settings, timing, source.prices, None if log is None or dry_run else ReplanLog(log)
        )
        _run(loop, source, timing, once=once, dry_run=dry_run, as_json=as_json)
    except OSError as error:
        fail(f"the re-plan cannot be logged, so that it is not ordered: {error}", code=2)
    except KeyboardInterrupt:
        errors.print("Stopped. The bounds end by themselves; then the spec's own hold.")


def _run(loop: ReplanLoop, source: "_Source", timing: Timing, *, once: bool, dry_run: bool, as_json: bool) -> None:
    said: dict[str, str] = {}
    while True:
        loop.look()
        say_who_does_not_answer(loop.cells, said)
        observed = loop.observed()
        if observed is not None and loop.due(observed):
            if (changed := source.changed()) is not None:
                loop.take(changed)
            failed = _turn(loop, observed, dry_run=dry_run, as_json=as_json)
            if once or dry_run:
                raise typer.Exit(NOT_ORDERED if failed or (once and observed.lost) else 0)
        time.sleep(min(LOOK_EVERY_S, timing.window_s / 2))


def say_who_does_not_answer(cells: Cells, said: dict[str, str]) -> None:
    """A line for each region whose state has changed since it was `said`. A wrong secret at the first look ends the
    command: no plan can be made around it."""
    refused = [cell for cell in cells.by_region.values() if cell.refused]
    if refused and not said:
        fail("; ".join(f"{cell.region}: {cell.error}" for cell in refused), code=2)
    for region, cell in cells.by_region.items():
        if cell.error and not said.get(region):
            errors.print(f"[yellow]{region}:[/] {escape(cell.error)} (it counts as lost after {LOST_AFTER_S:.0f} s)")
        elif said.get(region) and not cell.error:
            errors.print(f"[green]{region}:[/] answers again")
        said[region] = cell.error


def _turn(loop: ReplanLoop, observed: Observed, *, dry_run: bool, as_json: bool) -> dict[str, str]:
    """One re-plan; by region, what went wrong with its order."""
    plan = loop.replan(observed)
    if as_json:
        console.print_json(json.dumps(plan_as_json(plan)))
    else:
        show(plan, everything=dry_run)
    for region in sorted(observed.lost):
        errors.print(f"[yellow]{region} is lost:[/] {escape(loop.cells.by_region[region].error)}")
    for model, lane, traffic_class in sorted(loop.forecast.unplanned):
        errors.print(f"[yellow]note[/]: the worksheet has no {escape(traffic_class)} of {escape(model)} in lane {lane}")
    if dry_run:
        return {}
    failed = loop.order(plan, f"{why_line(plan)}; {price_line(plan)}")
    for region, error in failed.items():
        errors.print(f"[red]{region}: its bounds are not ordered:[/] {escape(error)}")
    return failed


class _Source:
    """The worksheet and its spec, read again when they change."""

    def __init__(self, worksheet: Path, memo: Path | None, endpoint: list[str] | None) -> None:
        self._worksheet = worksheet
        self._rate = RateSource(QUICK, memo=memo)
        try:
            self.sheet, self.spec = load_worksheet(worksheet)
            self.endpoints = _endpoints(self.spec, endpoint)  # before the rates, which take minutes
            self.case = self._case(self.sheet, self.spec)
            self._seen = self.sheet, self.spec
        except _Problem as problem:
            fail(f"{worksheet}: {problem}", code=2)

    def prices(self) -> dict[SiteKey, float]:
        """Of a replica of each site, by the files as they are now."""
        try:
            self._seen = load_worksheet(self._worksheet)
        except _Problem as problem:
            errors.print(
                f"[yellow]note[/]: the worksheet cannot be read, so that the last one counts: {escape(str(problem))}"
            )
            self._seen = self.sheet, self.spec
        sheet, spec = self._seen
        if _apart_from_prices(sheet, spec) != _apart_from_prices(self.sheet, self.spec):
            sheet, spec = self.sheet, self.spec  # first its groups have to be known
        return prices_now(self.case.basis, sheet, spec)

    def changed(self) -> ReplanCase | None:
        """What is to be re-planned from now on, where more than prices has changed."""
        sheet, spec = self._seen
        if _apart_from_prices(sheet, spec) == _apart_from_prices(self.sheet, self.spec):
            return None
        try:
            self.case = self._case(sheet, spec)
        except _Problem as problem:
            errors.print(f"[yellow]note[/]: the changed worksheet cannot be followed: {escape(str(problem))}")
            return None
        self.sheet, self.spec = sheet, spec
        return self.case

    def _case(self, sheet: Worksheet, spec: ClusterSpec) -> ReplanCase:
        case = replan_case(sheet, spec, self._rate, lambda text: errors.print(escape(text), style="dim"))
        for note in case.notes:
            errors.print(f"[yellow]note[/]: {escape(note)}")
        return case


def _apart_from_prices(sheet: Worksheet, spec: ClusterSpec) -> tuple[object, object]:
    regions = tuple(
        one.model_copy(
            update={"pools": tuple(pool.model_copy(update={"price_usd_per_hour": 0.0}) for pool in one.pools)}
        )
        for one in spec.regions
    )
    return sheet.model_copy(update={"gpu_prices": ()}), spec.model_copy(update={"regions": regions})


def _span(option: str, text: str, longest_s: float) -> float:
    try:
        found = seconds_of(text)
    except ValueError as error:
        fail(f"{option} {error}", code=2)
    if not _SHORTEST_S <= found <= longest_s:
        fail(f"{option} = {text}: allowed: {_SHORTEST_S:g}s to {longest_s / 60:g}m", code=2)
    return found


def _endpoints(spec: ClusterSpec, given: list[str] | None) -> dict[str, str]:
    """The URL of each region's gateways. Ends the command where one is missing."""
    urls = {region.name: region.endpoint for region in spec.regions}
    for one in given or ():
        region, _, url = one.partition("=")
        if region not in urls or not url.startswith(("http://", "https://")):
            fail(f"--endpoint {one}: allowed: REGION=URL, with a region of {', '.join(urls)}", code=2)
        urls[region] = url.rstrip("/")
    if missing := [region for region, url in urls.items() if url is None]:
        fail(f"regions.{missing[0]}.endpoint: missing; give it in the spec, or --endpoint {missing[0]}=URL", code=2)
    return {region: url for region, url in urls.items() if url is not None}
