"""`raylane status`: live tables of replicas, waiting and running requests, the last minute's TTFT, and what ended. They
fit into 80 columns."""

import json
import time
from collections.abc import Mapping
from typing import Annotated, Any

import typer
from rich.console import Group, RenderableType
from rich.live import Live
from rich.markup import escape

from cli.console import Table, console, fail, follow, live, plain_table, show, shown_span
from cli.departed import clock, end_of, ids_in, sequel_of, short_names
from cli.gateway import Url, ask, base_url
from cli.regions import AllRegions, fetch_regions, raw, status_view
from cli.starts import failing_lines, start_line, starting_lines

_REFRESH_S = 1.0
_SHOWN_DEPARTURES = 6
_LIVE_DEPARTURES = 2
"""A terminal has few lines, and what does not fit in is cut off at its end."""
_SHOWN_BANS = 5


def status(
    url: Url = None,
    once: Annotated[bool, typer.Option("--once", help="Print the table once and exit.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the gateway's report as JSON and exit.")] = False,
    starts: Annotated[
        bool, typer.Option("--starts", help="Print where the time of each replica's start went, and exit.")
    ] = False,
    all_regions: AllRegions = False,
) -> None:
    """Show replicas, waiting and running requests, and TTFT, live."""
    base = base_url(url)
    if all_regions:
        if starts:
            fail("--starts, --all-regions: allowed: one of them", code=2)
        _show_regions(base, once, as_json)
        return
    report = fetch_report(base)
    if starts and not as_json:
        show(_start_view(report))
        return
    if as_json:
        console.print_json(json.dumps(report))
        return
    if once or not console.is_terminal:
        show(_view(report))
        return
    try:
        with Live(_view(report, _LIVE_DEPARTURES), console=live, auto_refresh=False) as shown:
            while True:
                time.sleep(_REFRESH_S)
                shown.update(_view(fetch_report(base), _LIVE_DEPARTURES), refresh=True)
    except KeyboardInterrupt:
        return


def _show_regions(base: str, once: bool, as_json: bool) -> None:
    if as_json:
        console.print_json(json.dumps(raw(fetch_regions(base, "status"))))
        return
    follow(lambda: status_view(fetch_regions(base, "status")), once, _REFRESH_S)


def fetch_report(base: str) -> dict[str, Any]:
    """The gateway's report. Ends the command on any error."""
    return ask(base, "/raylane/status", timeout_s=5)


def _view(report: dict[str, Any], departures: int = _SHOWN_DEPARTURES) -> RenderableType:
    gateway = report["gateway"]
    head = (
        f"[bold]{report['cluster']}[/]  {gateway['url']}  up {shown_span(gateway['uptime_s'])}\n{in_gateways(report)}"
    )
    names = short_names([*_ids(report), *ids_in(report.get("departures", ()))])
    models = (part for model in report["models"] for part in _model(model, names))
    return Group(head, *log_lines(report), *drift_lines(report), *_departures(report, names, departures), *models)


def _start_view(report: dict[str, Any]) -> RenderableType:
    names = short_names(_ids(report))
    lines: list[str] = []
    for model in report["models"]:
        lines.append(f"[bold]model {escape(model['name'])}[/]")
        lines += [f"  {line}" for line in (*failing_lines(model), *starting_lines(model, names))]
        lines += [f"  {start_line(replica, names[replica['replica_id']])}" for replica in model["replicas"]]
    return Group(*lines)


def _ids(report: dict[str, Any]) -> list[str]:
    """The replicas that a report names."""
    models = report["models"]
    return list(
        dict.fromkeys(one["replica_id"] for model in models for one in (*model["replicas"], *model.get("starting", ())))
    )


def in_gateways(report: dict[str, Any]) -> str:
    """How many requests the gateways hold, and how many gateways there are where there are several."""
    gateways = report["gateways"]
    flows = sum(gateway["flows"] for gateway in gateways)
    where = "the gateway" if len(gateways) == 1 else f"{len(gateways)} gateways"
    lost = sum(model["lost_requests"] for model in report["models"])
    return f"{flows} requests in {where}" + (f", [red]{lost} lost with gateways that died[/]" if lost else "")


def drift_lines(report: dict[str, Any]) -> list[str]:
    """A line for each figure that is off the worksheet, as far as that was published."""
    drift: dict[str, Any] = report.get("drift", {"worksheet": "", "figures": ()})
    return [
        f"[yellow]off the worksheet {escape(drift['worksheet'])}[/]: {escape(one['quantity'])} "
        f"{escape(' '.join(part for part in (one['model'], one['traffic_class'], one['region']) if part))} "
        f"{one['observed']:.3g} instead of {one['expected']:.3g}"
        for one in drift["figures"]
    ]


def log_lines(report: dict[str, Any]) -> list[str]:
    """A line for each log that cannot be written now."""
    return [
        f"[red]gateway {gateway['id']}: log {escape(one['name'])} cannot be written ({escape(one['error'])}), "
        f"{one['lost_lines']} lines lost[/]"
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
    entry = state.get("scheduled")
    reason = escape(state["reason"] + (f": {entry}" if entry else ""))
    return (
        f"[not bold]autoscaler: {state['requested']} requested ({reason}), {state['applied']} "
        f"applied{starting}{alarms}[/]"
    )


def controls_line(model: dict[str, Any]) -> str:
    """What operators hold or pin."""
    words = {"hold": "held at no fewer than", "pin": "pinned at"}
    reported = [
        f"{words[one['kind']]} {one['replicas']} for another {shown_span(one['until_unix_s'] - time.time())} by "
        f"{escape(one['by'])}" + (f" ({escape(one['why'])})" if one["why"] else "")
        for one in model.get("controls", ())
    ]
    return f"[yellow]{'; '.join(reported)}[/]" if reported else ""


def _model(model: dict[str, Any], names: Mapping[str, str]) -> list[RenderableType]:
    """Each part fits into 80 columns, whatever the names are."""
    owner = (
        f"owned by gateway {model['owner']}, epoch {model['epoch']}" if model["owner"] else "owned by no gateway now"
    )
    lines = [f"\n[bold]model {escape(model['name'])}[/]{simulated_mark(model)}", owner]
    for group in model.get("groups", ()):
        lines += [_group_line(group), scaling_line(group), controls_line(group)]
    if not model.get("groups"):
        lines += [scaling_line(model), controls_line(model)]
    lines += [zones_line(model), *failing_lines(model), *starting_lines(model, names), *query_of_death_lines(model)]
    return [*(line for line in lines if line), _waiting_table(model), _endings_table(model), *_replicas(model, names)]


def _group_line(group: dict[str, Any]) -> str:
    """What a group of several does, and what it leaves to the next one."""
    speed = "" if group["tokens_per_s"] is None else f", {group['tokens_per_s']:.0f} booked tokens/s"
    overflow = (group["scaling"] or {}).get("overflow") or 0.0
    left = f", [yellow]{overflow:.0%} of its demand is left to the next group[/]" if overflow else ""
    return (
        f"[bold]group {escape(group['name'])}[/]: {group['ready']}/{group['desired_replicas']} replicas, "
        f"{group['leases']} leases, {group['finished']} finished{speed}{left}"
    )


def zones_line(model: dict[str, Any]) -> str:
    """The ready replicas of each zone, where pools have some."""
    zones = sorted({replica["zone"] for replica in model["replicas"] if replica.get("zone")})
    ready = [replica.get("zone") for replica in model["replicas"] if replica["state"] == "ready"]
    return f"zones: {', '.join(f'{escape(zone)} {ready.count(zone)} ready' for zone in zones)}" if zones else ""


def query_of_death_lines(model: dict[str, Any]) -> list[str]:
    """An alarm for each body that is refused since two replicas died while it ran. How many only ran at one death is no
    alarm."""
    suspects = model.get("suspects", ())
    banned = [one for one in suspects if one["banned"]]
    shown = [
        f"[red]query of death {escape(one['digest'])}: refused for {shown_span(one['forgotten_in_s'])}[/]"
        for one in banned[:_SHOWN_BANS]
    ]
    if len(banned) > _SHOWN_BANS:
        shown.append(f"[red]...and {len(banned) - _SHOWN_BANS} more of them[/]")
    return shown


def _waiting_table(model: dict[str, Any]) -> Table:
    table = plain_table("replicas", "waiting", "oldest wait", "head waits for", "running")
    nobody: dict[str, Any] = {"oldest_wait_s": 0.0, "head_waits_for": "no owner"}
    oldest: dict[str, Any] = max(model["lanes"], key=lambda lane: lane["oldest_wait_s"], default=nobody)
    table.add_row(
        f"{sum(replica['state'] == 'ready' for replica in model['replicas'])}/{model['desired_replicas']}",
        str(sum(lane["waiting"] for lane in model["lanes"])),
        f"{oldest['oldest_wait_s']:.1f} s",
        oldest["head_waits_for"] or "-",
        str(model["leases"]),
    )
    return table


def _endings_table(model: dict[str, Any]) -> Table:
    endings = ("finished", "cancelled", "failed")
    table = plain_table(*endings, "rejected", "TTFT p50", "p95", "p99")
    ttft = model["ttft_ms"]
    table.add_row(
        *(str(model["endings"][ending]) for ending in endings),
        str(sum(model["rejections"].values())),
        *((f"{ttft[key]:.0f} ms" for key in ("p50", "p95", "p99")) if ttft else ("-", "-", "-")),
    )
    return table


def _replicas(model: dict[str, Any], names: Mapping[str, str]) -> list[RenderableType]:
    several = bool(model.get("groups"))
    columns = ("leases", "in engine", "queued there", "KV used", "booked")
    table = plain_table("replica", *(["group"] if several else []), "state", *columns, left=2 + several)
    notes = []
    for replica in model["replicas"]:
        colour = {"ready": "green", "draining": "yellow", "cordoned": "yellow"}.get(replica["state"], "red")
        booked = replica["booked_kv_tokens"] / replica["kv_tokens"] if replica["kv_tokens"] else 0
        name = escape(names[replica["replica_id"]])
        table.add_row(
            name,
            *([escape(replica["group"])] if several else []),
            f"[{colour}]{replica['state']}[/]",
            str(replica["leases"]),
            _shown(replica["engine_running"]),
            _shown(replica["engine_waiting"]),
            "-" if replica["kv_usage"] is None else f"{replica['kv_usage']:.0%}",
            f"{booked:.0%}",
        )
        if replica.get("itl_class"):
            notes.append(
                f"{name}: at most {replica['max_sequences']} sequences (itl_ms of {escape(replica['itl_class'])})"
            )
        if because := _because(replica):
            notes.append(f"[yellow]{name} {because}[/]")
    return [table, *notes]


def _because(replica: dict[str, Any]) -> str:
    """Who cordoned it, or why it drains."""
    cordon, drains_for = replica.get("cordon"), replica.get("drains_for")
    if cordon:
        return f"cordoned by {escape(cordon['by'])}" + (f": {escape(cordon['why'])}" if cordon["why"] else "")
    return f"drains ({drains_for})" if drains_for else ""


def _departures(report: dict[str, Any], names: Mapping[str, str], maximum: int) -> list[RenderableType]:
    """The last of what ended, newest first, and what came instead."""
    ended = report.get("departures", [])
    if not ended:
        return []
    table = Table.grid(padding=(0, 2))
    several = len(report["models"]) > 1
    for one in reversed(ended[-maximum:]):
        colour = "dim" if one["planned"] else "red"
        sequel = sequel_of(one, names)
        reported = f"[{colour}]{escape(end_of(one, names, several))}[/]" + (f"; {escape(sequel)}" if sequel else "")
        table.add_row(clock(one["at_unix_s"]), reported)
    lost = sum(not one["planned"] for one in ended)
    return [f"[bold]ended[/]: {lost} lost, {len(ended) - lost} as planned, of the last {len(ended)}", table]


def _shown(value: object) -> str:
    return "-" if value is None else str(value)
