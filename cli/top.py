"""`raylane top`: the lanes, live: requests and work that wait, expected waits, rejections."""

import json
import time
from typing import Annotated, Any

import typer
from rich.console import Group, RenderableType
from rich.live import Live
from rich.markup import escape

from cli.console import Table, console, follow, live, plain_table, show
from cli.gateway import Url, base_url
from cli.regions import AllRegions, fetch_regions, raw, top_view
from cli.status import fetch_report, in_gateways, simulated_mark

_REFRESH_S = 0.5


def top(
    url: Url = None,
    once: Annotated[bool, typer.Option("--once", help="Print the table once and exit.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the lanes as JSON and exit.")] = False,
    all_regions: AllRegions = False,
) -> None:
    """Show the lanes live: requests waiting, seconds of work, oldest and expected wait, rejections by cause."""
    base = base_url(url)
    if all_regions:
        if as_json:
            console.print_json(json.dumps(raw(fetch_regions(base, "status"))))
        else:
            follow(lambda: top_view(fetch_regions(base, "status")), once, _REFRESH_S, screen=True)
        return
    report = fetch_report(base)
    if as_json:
        console.print_json(json.dumps({model["name"]: model["lanes"] for model in report["models"]}))
        return
    if once or not console.is_terminal:
        show(_view(report, {}))
        return
    before: dict[str, float] = {}
    try:
        with Live(_view(report, before), console=live, auto_refresh=False, screen=True) as shown:
            while True:
                before = {model["name"]: model["placed"] for model in report["models"]}
                time.sleep(_REFRESH_S)
                report = fetch_report(base)
                shown.update(_view(report, before), refresh=True)
    except KeyboardInterrupt:
        return


def _view(report: dict[str, Any], before: dict[str, float]) -> RenderableType:
    head = f"[bold]{report['cluster']}[/]  {report['gateway']['url']}\n{in_gateways(report)}"
    return Group(head, *(part for model in report["models"] for part in _model(model, before.get(model["name"]))))


def _model(model: dict[str, Any], before: float | None) -> list[RenderableType]:
    """Each part fits into 80 columns, whatever the names are."""
    rates = f"{model['leases']} leases"
    if before is not None:
        rates += f", {(model['placed'] - before) / _REFRESH_S:.0f} placed/s"
    if model["tokens_per_s"]:
        rates += f", {model['tokens_per_s']:.0f} booked tokens/s"
    groups = [_group_line(group) for group in model.get("groups", ())]
    head = f"\n[bold]model {escape(model['name'])}[/]{simulated_mark(model)}"
    return [head, rates, *groups, _waits(model), *_refusals(model)]


def _group_line(group: dict[str, Any]) -> str:
    speed = "" if group["tokens_per_s"] is None else f", {group['tokens_per_s']:.0f} booked tokens/s"
    return (
        f"group {escape(group['name'])}: {group['ready']}/{group['desired_replicas']} replicas, {group['leases']} "
        f"leases{speed}"
    )


def _waits(model: dict[str, Any]) -> Table:
    table = plain_table("lane", "waiting", "work", "oldest", "wait p50", "p95", "p95 held", left=1)
    for lane in model["lanes"]:
        eta = lane["eta_s"]
        held = (
            f"{lane['eta_covered'] / lane['eta_estimated']:.0%} of {lane['eta_estimated']}"
            if lane["eta_estimated"]
            else "-"
        )
        table.add_row(
            escape(lane["name"]),
            str(lane["waiting"]),
            "-" if lane["work_s"] is None else f"{lane['work_s']:.1f} s",
            f"{lane['oldest_wait_s']:.1f} s" if lane["waiting"] else "-",
            *((f"{eta[0]:.1f} s", f"{eta[1]:.1f} s") if eta else ("-", "-")),
            held,
        )
    return table


def _refusals(model: dict[str, Any]) -> list[str]:
    """What each lane's head waits for, and who was turned away there: a line for a lane of which there is something to
    say."""
    lines = []
    for lane in model["lanes"]:
        rejected = {
            key.split("/", 1)[1]: count
            for key, count in model["rejections"].items()
            if key.split("/", 1)[0] == lane["name"]
        }
        reported = [f"head waits for {lane['head_waits_for']}"] if lane["head_waits_for"] else []
        if rejected:
            reported.append("rejected: " + ", ".join(f"{cause} {count}" for cause, count in sorted(rejected.items())))
        if reported:
            lines.append(f"[bold]{escape(lane['name'])}[/]: {'; '.join(reported)}")
    return lines
