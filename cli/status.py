"""`raylane status`: live tables of replicas, waiting and running requests, the last minute's TTFT, and what ended. They
fit into 80 columns."""

import time
from collections.abc import Mapping, Sequence
from typing import Annotated

import typer
from rich.console import Group, RenderableType
from rich.markup import escape

from cli.console import Table, console, fail, follow, plain_table, print_json, show, shown_span
from cli.departed import clock, end_of, ids_in, sequel_of, short_names
from cli.gateway import Url, base_url, cell_report, page_link
from cli.regions import AllRegions, fetch_regions, status_view, ttft_cells
from cli.starts import sentence_of, start_line, starting_line
from deployments.cell.control import ControlKind
from deployments.gateway.operators.report import CellReport, GroupReport, ModelReport, ReplicaReport, SuspectReport
from deployments.ladder_stats import LadderMode

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
    if all_regions and starts:
        fail("--starts, --all-regions: allowed: one of them", code=2)
    if as_json:
        print_json(fetch_regions(base, "status", CellReport) if all_regions else cell_report(base))
    elif all_regions:
        follow(lambda: status_view(fetch_regions(base, "status", CellReport)), once, _REFRESH_S)
    elif starts:
        show(_start_view(cell_report(base)))
    else:
        shown = _SHOWN_DEPARTURES if once or not console.is_terminal else _LIVE_DEPARTURES
        follow(lambda: cell_view(cell_report(base), shown), once, _REFRESH_S)


def page(url: Url = None) -> None:
    """Print a link that opens the cell's page in a browser: once, within a minute."""
    console.print(page_link(base_url(url)), markup=False)


def cell_view(report: CellReport, departures: int = _SHOWN_DEPARTURES) -> RenderableType:
    gateway = report.gateway
    head = f"[bold]{report.cluster}[/]  {gateway.url}  up {shown_span(gateway.uptime_s)}\n{in_gateways(report)}"
    names = short_names([*_ids(report), *ids_in(report.departures)])
    models = (part for model in report.models for part in _model(model, names))
    return Group(head, *_log_lines(report), *_drift_lines(report), *_departures(report, names, departures), *models)


def _start_view(report: CellReport) -> RenderableType:
    names = short_names(_ids(report))
    lines: list[str] = []
    for model in report.models:
        lines.append(f"[bold]model {escape(model.name)}[/]")
        lines += [f"  {line}" for line in _start_lines(model, names)]
        lines += [f"  {start_line(replica.start, names[replica.replica_id])}" for replica in model.replicas]
    return Group(*lines)


def _start_lines(model: ModelReport, names: Mapping[str, str]) -> list[str]:
    """Why it does not start, and what does."""
    failing = model.failing_start
    lines = [] if failing is None else [f"[red]{escape(line)}[/]" for line in sentence_of(failing).splitlines()]
    return [*lines, *(starting_line(start, names[start.replica_id]) for start in model.starting)]


def _ids(report: CellReport) -> list[str]:
    """The replicas that a report names."""
    found: list[str] = []
    for model in report.models:
        found += [one.replica_id for one in model.replicas] + [one.replica_id for one in model.starting]
    return list(dict.fromkeys(found))


def in_gateways(report: CellReport) -> str:
    """How many requests the gateways hold, and how many gateways there are where there are several."""
    flows, count = sum(gateway.flows for gateway in report.gateways), len(report.gateways)
    lost = sum(model.lost_requests for model in report.models)
    return f"{flows} requests in {'the gateway' if count == 1 else f'{count} gateways'}" + (
        f", [red]{lost} lost with gateways that died[/]" if lost else ""
    )


def _drift_lines(report: CellReport) -> list[str]:
    """A line for each figure that is off the worksheet, as far as that was published."""
    if (drift := report.drift) is None:
        return []
    return [
        f"[yellow]off the worksheet {escape(drift.worksheet)}[/]: {escape(one.quantity)} "
        f"{escape(' '.join(part for part in (one.model, one.traffic_class, one.region) if part))} "
        f"{one.observed:.3g} instead of {one.expected:.3g}"
        for one in drift.figures
    ]


def _log_lines(report: CellReport) -> list[str]:
    """A line for each log that cannot be written now."""
    return [
        f"[red]gateway {gateway.id}: log {escape(one.name)} cannot be written ({escape(one.error)}), "
        f"{one.lost_lines} lines lost[/]"
        for gateway in report.gateways
        for one in gateway.failing_logs
    ]


def model_head(model: ModelReport) -> str:
    """Its name, and whether an engine runs it."""
    simulated = " [black on yellow] SIMULATED: no model runs [/]" if model.engine == "simulated" else ""
    return f"\n[bold]model {escape(model.name)}[/]{simulated}"


def _scaling_line(scaled: ModelReport | GroupReport) -> str:
    """What its autoscaler decided last."""
    state = scaled.scaling
    if state is None:
        return "[yellow]autoscaler: nothing decided yet[/]"
    starting = f", {state.starting} starting" if state.starting else ""
    if state.starting and state.ready_unix_s is not None:
        starting += f" (ready in {shown_span(state.ready_unix_s - time.time())})"
    alarms = f", [red]{escape(', '.join(state.alarms))}[/]" if state.alarms else ""
    if scaled.overdue_s is not None:
        alarms += f", [red]no decision for {shown_span(scaled.overdue_s)}[/]"
    reason = escape(state.reason + (f": {state.scheduled}" if state.scheduled else ""))
    return f"[not bold]autoscaler: {state.requested} requested ({reason}), {state.applied} applied{starting}{alarms}[/]"


def _controls_line(scaled: ModelReport | GroupReport) -> str:
    """What operators hold or pin."""
    words = {ControlKind.HOLD: "held at no fewer than", ControlKind.PIN: "pinned at"}
    reported = [
        f"{words[one.kind]} {one.replicas} for another {shown_span(one.until_unix_s - time.time())} by "
        f"{escape(one.by)}" + (f" ({escape(one.why)})" if one.why else "")
        for one in scaled.controls
    ]
    return f"[yellow]{'; '.join(reported)}[/]" if reported else ""


def _model(model: ModelReport, names: Mapping[str, str]) -> list[RenderableType]:
    """Each part fits into 80 columns, whatever the names are."""
    owner = f"owned by gateway {model.owner}, epoch {model.epoch}" if model.owner else "owned by no gateway now"
    lines = [model_head(model), owner]
    for group in model.groups:
        overflow = 0.0 if group.scaling is None else group.scaling.overflow
        left = f", [yellow]{overflow:.0%} of its demand is left to the next group[/]" if overflow else ""
        lines += [group_line(group) + left, _scaling_line(group), _controls_line(group)]
    if not model.groups:
        lines += [_scaling_line(model), _controls_line(model)]
    lines += [
        ladder_line(model),
        _zones_line(model),
        *_start_lines(model, names),
        *query_of_death_lines(model.suspects),
    ]
    return [*(line for line in lines if line), _counts_table(model), _endings_table(model), *_replicas(model, names)]


def group_line(group: GroupReport) -> str:
    """What a group of several does."""
    speed = "" if group.tokens_per_s is None else f", {group.tokens_per_s:.0f} booked tokens/s"
    return (
        f"[bold]group {escape(group.name)}[/]: {group.ready}/{group.desired_replicas} replicas, "
        f"{group.leases} leases, {group.finished} finished{speed}"
    )


def ladder_line(model: ModelReport) -> str:
    """Which steps of its ladder are in force, and whom they have touched."""
    if (ladder := model.ladder) is None:
        return ""
    steps = "no step" if not ladder.at else ", ".join(ladder.steps[: ladder.at])
    ordered, word = ladder.order, {LadderMode.AT: "at", LadderMode.AT_MOST: "at most at"}
    if ordered.mode is not LadderMode.AUTO:
        steps += f"; ordered: {word[ordered.mode]} {ordered.step or 'none'}"
    touched = "".join(f", {count} {name}" for name, count in sorted(ladder.touched.items()))
    colour = "yellow" if ladder.at else "not bold"
    return f"[{colour}]ladder: {ladder.at} of {len(ladder.steps)} steps ({escape(steps)}){escape(touched)}[/]"


def _zones_line(model: ModelReport) -> str:
    """The ready replicas of each zone, where pools have some."""
    zones = sorted({replica.zone for replica in model.replicas if replica.zone})
    ready = [replica.zone for replica in model.replicas if replica.state == "ready"]
    return f"zones: {', '.join(f'{escape(zone)} {ready.count(zone)} ready' for zone in zones)}" if zones else ""


def query_of_death_lines(suspects: Sequence[SuspectReport]) -> list[str]:
    """An alarm for each body that is refused since two replicas died while it ran. How many only ran at one death is no
    alarm."""
    banned = [one for one in suspects if one.banned]
    shown = [
        f"[red]query of death {escape(one.digest)}: refused for {shown_span(one.forgotten_in_s)}[/]"
        for one in banned[:_SHOWN_BANS]
    ]
    if len(banned) > _SHOWN_BANS:
        shown.append(f"[red]...and {len(banned) - _SHOWN_BANS} more of them[/]")
    return shown


def _counts_table(model: ModelReport) -> Table:
    table = plain_table("replicas", "waiting", "oldest wait", "head waits for", "running")
    oldest = max(model.lanes, key=lambda lane: lane.oldest_wait_s, default=None)
    table.add_row(
        f"{model.ready}/{model.desired_replicas}",
        str(model.waiting),
        f"{0.0 if oldest is None else oldest.oldest_wait_s:.1f} s",
        "no owner" if oldest is None else oldest.head_waits_for or "-",
        str(model.leases),
    )
    return table


def _endings_table(model: ModelReport) -> Table:
    endings = ("finished", "cancelled", "failed")
    table = plain_table(*endings, "rejected", "TTFT p50", "p95", "p99")
    rejected = sum(sum(causes.values()) for causes in model.rejections.values())
    table.add_row(*(str(model.endings[ending]) for ending in endings), str(rejected), *ttft_cells(model))
    return table


def _replicas(model: ModelReport, names: Mapping[str, str]) -> list[RenderableType]:
    several = bool(model.groups)
    columns = ("leases", "in engine", "queued there", "KV used", "booked")
    table = plain_table("replica", *(["group"] if several else []), "state", *columns, left=2 + several)
    notes = []
    for replica in model.replicas:
        colour = {"ready": "green", "draining": "yellow", "cordoned": "yellow"}.get(replica.state, "red")
        booked = replica.booked_kv_tokens / replica.kv_tokens if replica.kv_tokens else 0
        name = escape(names[replica.replica_id])
        table.add_row(
            name,
            *([escape(replica.group)] if several else []),
            f"[{colour}]{replica.state}[/]",
            str(replica.leases),
            *("-" if count is None else str(count) for count in (replica.engine_running, replica.engine_waiting)),
            "-" if replica.kv_usage is None else f"{replica.kv_usage:.0%}",
            f"{booked:.0%}",
        )
        if replica.itl_class:
            notes.append(f"{name}: at most {replica.max_sequences} sequences (itl_ms of {escape(replica.itl_class)})")
        if because := _because(replica):
            notes.append(f"[yellow]{name} {because}[/]")
    return [table, *notes]


def _because(replica: ReplicaReport) -> str:
    """Who cordoned it, or why it drains."""
    cordon = replica.cordon
    if cordon is not None:
        return f"cordoned by {escape(cordon.by)}" + (f": {escape(cordon.why)}" if cordon.why else "")
    return f"drains ({replica.drains_for})" if replica.drains_for else ""


def _departures(report: CellReport, names: Mapping[str, str], maximum: int) -> list[RenderableType]:
    """The last of what ended, newest first, and what came instead."""
    ended = report.departures
    if not ended:
        return []
    table = Table.grid(padding=(0, 2))
    for one in reversed(ended[-maximum:]):
        colour, sequel = "dim" if one.cause.planned else "red", sequel_of(one, names)
        end = f"[{colour}]{escape(end_of(one, names, len(report.models) > 1))}[/]"
        table.add_row(clock(one.at_unix_s), end + (f"; {escape(sequel)}" if sequel else ""))
    lost = sum(not one.cause.planned for one in ended)
    return [f"[bold]ended[/]: {lost} lost, {len(ended) - lost} as planned, of the last {len(ended)}", table]
