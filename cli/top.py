"""`raylane top`: the lanes, live: who waits, how much work that is, how long it would take, and who was turned away."""

import json
import time
from typing import Annotated, Any

import typer
from rich.console import Group, RenderableType
from rich.live import Live
from rich.table import Table

from cli.console import console
from cli.local_http import base_url
from cli.status import fetch_report, in_gateways, simulated_mark

_REFRESH_S = 0.5


def top(
    url: Annotated[str | None, typer.Option(help="The gateway, as http://host:port; without it, the cluster on this machine.")] = None,
    once: Annotated[bool, typer.Option("--once", help="Print the table once and end.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the lanes as JSON and end.")] = False,
) -> None:
    """Show the lanes live: waiting, seconds of work, oldest wait, expected wait, rejections by cause."""
    base = base_url(url)
    report = fetch_report(base)
    if as_json:
        console.print_json(json.dumps({model["name"]: model["lanes"] for model in report["models"]}))
        return
    if once or not console.is_terminal:
        console.print(_view(report, {}))
        return
    before: dict[str, float] = {}
    try:
        with Live(_view(report, before), console=console, auto_refresh=False, screen=True) as live:
            while True:
                before = {model["name"]: model["placed"] for model in report["models"]}
                time.sleep(_REFRESH_S)
                report = fetch_report(base)
                live.update(_view(report, before), refresh=True)
    except KeyboardInterrupt:
        return


def _view(report: dict[str, Any], before: dict[str, float]) -> RenderableType:
    head = f"[bold]{report['cluster']}[/]  {report['gateway']['url']}  {in_gateways(report)}"
    return Group(head, *(_table(model, before.get(model["name"])) for model in report["models"]))


def _table(model: dict[str, Any], before: float | None) -> Table:
    rate = model["tokens_per_s"]
    title = f"model {model['name']}{simulated_mark(model)}: {model['leases']} leases"
    if before is not None:
        title += f", {(model['placed'] - before) / _REFRESH_S:.0f} placed/s"
    if rate:
        title += f", {rate:.0f} booked tokens/s"
    table = Table(title=title, title_justify="left", title_style="bold", show_edge=False)
    table.add_column("lane", min_width=8)
    for column in ("waiting", "work", "oldest", "wait p50", "p95", "p95 held"):
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column("head waits for")
    table.add_column("rejected")
    for lane in model["lanes"]:
        rejected = {key.split("/", 1)[1]: count for key, count in model["rejections"].items() if key.split("/", 1)[0] == lane["name"]}
        eta = lane["eta_s"]
        held = f"{lane['eta_covered'] / lane['eta_promised']:.0%} of {lane['eta_promised']}" if lane["eta_promised"] else "-"
        table.add_row(
            lane["name"],
            str(lane["waiting"]),
            "-" if lane["work_s"] is None else f"{lane['work_s']:.1f} s",
            f"{lane['oldest_wait_s']:.1f} s" if lane["waiting"] else "-",
            *((f"{eta[0]:.1f} s", f"{eta[1]:.1f} s") if eta else ("-", "-")),
            held,
            lane["head_waits_for"] or "-",
            ", ".join(f"{cause} {count}" for cause, count in sorted(rejected.items())) or "-",
        )
    return table
