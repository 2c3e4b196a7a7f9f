"""`raylane top`: the lanes, live: requests and work that wait, expected waits, rejections."""

import time
from typing import Annotated

import typer
from rich.console import Group, RenderableType
from rich.markup import escape

from cli.console import Table, follow, plain_table, print_json
from cli.gateway import Url, base_url, cell_report
from cli.regions import AllRegions, fetch_regions, seconds, top_view
from cli.status import group_line, in_gateways, model_head
from deployments.gateway.operators.report import CellReport, ModelReport

_REFRESH_S = 0.5


def top(
    url: Url = None,
    once: Annotated[bool, typer.Option("--once", help="Print the table once and exit.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the lanes as JSON and exit.")] = False,
    all_regions: AllRegions = False,
) -> None:
    """Show the lanes live: requests waiting, seconds of work, oldest and expected wait, rejections by cause."""
    base = base_url(url)
    if all_regions and as_json:
        print_json(fetch_regions(base, "status", CellReport))
    elif all_regions:
        follow(lambda: top_view(fetch_regions(base, "status", CellReport)), once, _REFRESH_S, screen=True)
    elif as_json:
        print_json({model.name: model.lanes for model in cell_report(base).models})
    else:
        before: dict[str, tuple[int, float]] = {}
        follow(lambda: lanes_view(cell_report(base), before), once, _REFRESH_S, screen=True)


def lanes_view(report: CellReport, before: dict[str, tuple[int, float]]) -> RenderableType:
    """`before`: how many requests of each model had been placed at the last look, and when that was (monotonic clock);
    taken down for the next."""
    head = f"[bold]{report.cluster}[/]  {report.gateway.url}\n{in_gateways(report)}"
    view = Group(head, *(part for model in report.models for part in _model(model, before.get(model.name))))
    before.update({model.name: (model.placed, time.monotonic()) for model in report.models})
    return view


def _model(model: ModelReport, before: tuple[int, float] | None) -> list[RenderableType]:
    """Each part fits into 80 columns, whatever the names are."""
    rates = f"{model.leases} leases"
    if before is not None:
        placed, at = before
        rates += f", {(model.placed - placed) / (time.monotonic() - at):.0f} placed/s"
    if model.tokens_per_s:
        rates += f", {model.tokens_per_s:.0f} booked tokens/s"
    return [model_head(model), rates, *map(group_line, model.groups), _waits(model), *_refusals(model)]


def _waits(model: ModelReport) -> Table:
    table = plain_table("lane", "waiting", "work", "oldest", "wait p50", "p95", "p95 held", left=1)
    for lane in model.lanes:
        held = f"{lane.covered / lane.estimated:.0%} of {lane.estimated}" if lane.estimated else "-"
        times = (lane.work_s, lane.oldest_wait_s if lane.waiting else None, *(lane.eta_s or (None, None)))
        table.add_row(escape(lane.name), str(lane.waiting), *map(seconds, times), held)
    return table


def _refusals(model: ModelReport) -> list[str]:
    """What each lane's head waits for, and who was turned away there: a line for a lane of which there is something to
    say."""
    lines = []
    for lane in model.lanes:
        rejected = model.rejections.get(lane.name, {})
        reported = [f"head waits for {lane.head_waits_for}"] if lane.head_waits_for else []
        if rejected:
            reported.append("rejected: " + ", ".join(f"{cause} {count}" for cause, count in sorted(rejected.items())))
        if reported:
            lines.append(f"[bold]{escape(lane.name)}[/]: {'; '.join(reported)}")
    return lines
