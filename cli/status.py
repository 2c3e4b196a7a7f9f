"""`raylane status`: a live table of replicas, waiting and running requests, and the last minute's TTFT."""

import json
import time
from typing import Annotated, Any

import requests
import typer
from rich.console import Group, RenderableType
from rich.live import Live
from rich.markup import escape
from rich.table import Table

from cli.console import console
from cli.duration import shown_span
from cli.local_http import base_url, no_answer, read

_REFRESH_S = 1.0


def status(
    url: Annotated[str | None, typer.Option(help="The gateway, as http://host:port; without it, the cluster on this machine.")] = None,
    once: Annotated[bool, typer.Option("--once", help="Print the table once and end.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the gateway's report as JSON and end.")] = False,
) -> None:
    """Show replicas, waiting and running requests, and TTFT, live."""
    base = base_url(url)
    report = fetch_report(base)
    if as_json:
        console.print_json(json.dumps(report))
        return
    if once or not console.is_terminal:
        console.print(_view(report))
        return
    try:
        with Live(_view(report), console=console, auto_refresh=False) as live:
            while True:
                time.sleep(_REFRESH_S)
                live.update(_view(fetch_report(base)), refresh=True)
    except KeyboardInterrupt:
        return


def fetch_report(base: str) -> dict[str, Any]:
    """The gateway's report, or the command's end with a message."""
    try:
        response = read(base, "/raylane/status", timeout_s=5)
        response.raise_for_status()
        report: dict[str, Any] = response.json()
    except (requests.RequestException, ValueError) as error:
        no_answer(base, error)
    return report


def _view(report: dict[str, Any]) -> RenderableType:
    gateway = report["gateway"]
    head = f"[bold]{report['cluster']}[/]  {gateway['url']}  up {gateway['uptime_s']:.0f} s  {in_gateways(report)}"
    return Group(head, *log_lines(report), *(table for model in report["models"] for table in (_model_table(model), _replica_table(model))))


def in_gateways(report: dict[str, Any]) -> str:
    """How many requests the gateways hold, and how many gateways there are where there are several."""
    gateways = report["gateways"]
    flows = sum(gateway["flows"] for gateway in gateways)
    where = "the gateway" if len(gateways) == 1 else f"{len(gateways)} gateways"
    lost = sum(model["lost_requests"] for model in report["models"])
    return f"{flows} requests in {where}" + (f", [red]{lost} lost with gateways that died[/]" if lost else "")


def log_lines(report: dict[str, Any]) -> list[str]:
    """A line for each log that cannot be written now."""
    return [
        f"[red]gateway {gateway['id']}: log {escape(one['name'])} cannot be written ({escape(one['error'])}), {one['lost_lines']} lines lost[/]"
        for gateway in report["gateways"]
        for one in gateway.get("failing_logs", ())
    ]


def simulated_mark(model: dict[str, Any]) -> str:
    """What stands beside the name of a model that no engine runs."""
    return " [black on yellow] SIMULATED: no model runs [/]" if model.get("engine") == "simulated" else ""


def scaling_line(model: dict[str, Any]) -> str:
    """What its autoscaler decided last."""
    state = model.get("scaling")
    if not state:
        return "[yellow]autoscaler: nothing decided yet[/]"
    starting = f", {state['starting']} starting" if state["starting"] else ""
    if state["starting"] and state["start_up_eta_s"] is not None:
        starting += f" (ready in {shown_span(state['at_unix_s'] + state['start_up_eta_s'] - time.time())})"
    alarms = f", [red]{escape(', '.join(state['alarms']))}[/]" if state["alarms"] else ""
    if state["overdue_s"] is not None:
        alarms += f", [red]no decision for {shown_span(state['overdue_s'])}[/]"
    return f"[not bold]autoscaler: {state['requested']} requested ({escape(state['reason'])}), {state['applied']} applied{starting}{alarms}[/]"


def controls_line(model: dict[str, Any]) -> str:
    """What operators hold or pin."""
    words = {"hold": "held at no fewer than", "pin": "pinned at"}
    told = [
        f"{words[one['kind']]} {one['replicas']} for another {shown_span(one['until_unix_s'] - time.time())} by {escape(one['by'])}"
        + (f" ({escape(one['why'])})" if one["why"] else "")
        for one in model.get("controls", ())
    ]
    return f"[yellow]{'; '.join(told)}[/]" if told else ""


def _model_table(model: dict[str, Any]) -> Table:
    owner = f", owned by gateway {model['owner']}, epoch {model['epoch']}" if model["owner"] else ", owned by no gateway now"
    lines = "".join(f"\n{line}" for line in (scaling_line(model), controls_line(model)) if line)
    table = Table(title=f"model {model['name']}{simulated_mark(model)}{owner}{lines}", title_justify="left", title_style="bold")
    for column in (
        "replicas",
        "waiting",
        "oldest wait",
        "head waits for",
        "running",
        "finished",
        "cancelled",
        "failed",
        "rejected",
        "TTFT p50",
        "p95",
        "p99",
    ):
        table.add_column(column, justify="right")
    nobody: dict[str, Any] = {"oldest_wait_s": 0.0, "head_waits_for": "no owner"}
    oldest: dict[str, Any] = max(model["lanes"], key=lambda lane: lane["oldest_wait_s"], default=nobody)
    ttft = model["ttft_ms"]
    ready = sum(replica["state"] == "ready" for replica in model["replicas"])
    ends = model["endings"]
    table.add_row(
        f"{ready}/{model['wanted_replicas']}",
        str(sum(lane["waiting"] for lane in model["lanes"])),
        f"{oldest['oldest_wait_s']:.1f} s",
        oldest["head_waits_for"] or "-",
        str(model["leases"]),
        *(str(ends[ending]) for ending in ("finished", "cancelled", "failed")),
        str(sum(model["rejections"].values())),
        *((f"{ttft[key]:.0f} ms" for key in ("p50", "p95", "p99")) if ttft else ("-", "-", "-")),
    )
    return table


def _replica_table(model: dict[str, Any]) -> Table:
    table = Table(show_edge=False, pad_edge=True)
    for column in ("replica", "state", "leases", "in engine", "queued in engine", "KV used", "KV booked"):
        table.add_column(column, justify="left" if column in ("replica", "state") else "right")
    for replica in model["replicas"]:
        colour = {"ready": "green", "draining": "yellow", "cordoned": "yellow"}.get(replica["state"], "red")
        booked = replica["booked_kv_tokens"] / replica["kv_tokens"] if replica["kv_tokens"] else 0
        table.add_row(
            replica["replica_id"],
            f"[{colour}]{replica['state']}[/]{_because(replica)}",
            str(replica["leases"]),
            _shown(replica["engine_running"]),
            _shown(replica["engine_waiting"]),
            "-" if replica["kv_usage"] is None else f"{replica['kv_usage']:.0%}",
            f"{booked:.0%}",
        )
    return table


def _because(replica: dict[str, Any]) -> str:
    """Who cordoned it, or why it drains."""
    cordon, drains_for = replica.get("cordon"), replica.get("drains_for")
    if cordon:
        return f" by {escape(cordon['by'])}" + (f": {escape(cordon['why'])}" if cordon["why"] else "")
    return f" ({drains_for})" if drains_for else ""


def _shown(value: object) -> str:
    return "-" if value is None else str(value)
