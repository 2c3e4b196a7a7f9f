"""`raylane plan WORKSHEET --against`: what of the traffic and the prices has left the worksheet, and what that does to
the plan."""

import json
import zoneinfo
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

from rich import box
from rich.markup import escape

from cli.console import Table, console, fail, shown_span
from cli.gateway import ask, base_url
from cli.plan.record import as_record
from cluster.spec import ClusterSpec
from deployments.traffic.counts import Period, Stream, Stretches
from deployments.traffic.published_drift import (
    DriftAlarm,
    PublishedDrift,
    PublishedDriftError,
    acknowledge,
    read_drift,
    write_drift,
)
from planning.drift.comparison import ComparedFigure, Comparison, Drift, compare
from planning.drift.expected import Expected
from planning.drift.measures import DriftQuantity
from planning.drift.recording import (
    RecordingError,
    is_recording,
    read_recording,
    stretches_of_page,
    stretches_of_trace,
)
from planning.drift.sheet import PlanChange, PriceDrift, case_as_recorded, expected_from, plan_change, price_drifts
from planning.plans.answer import WorksheetPlan
from planning.plans.planner import PlanError
from planning.plans.question import Case
from planning.workload.trace import Trace, TraceError
from planning.workload.traces import read_requests

LIVE = "live"
OFF = 3
"""The exit code where traffic or prices are not those of the worksheet."""
HOURS = 24
"""Of live traffic, so much is compared."""

Planner = Callable[[Case], WorksheetPlan]


def against(
    source: str,
    url: str | None,
    case: Case,
    planner: Planner,
    publish: Path | None,
    acknowledged: Path | None,
    as_json: bool,
) -> int:
    """Compares the worksheet with `live`, a recording or a trace, and prints it. Returns the exit code."""
    expected = expected_from(case.sheet, case.streams)
    recorded = _recorded(source, url, expected, case.sheet.time_zone)
    try:
        found = compare(expected, recorded)
    except ValueError as problem:
        fail(f"--against {source}: {problem}", code=2)
    live = ClusterSpec.model_validate(ask(base_url(url), "/raylane/spec")) if source == LIVE else case.spec
    prices = price_drifts(case.sheet, case.spec, live)
    off = published(found, prices, case.sheet.name)
    if acknowledged is not None:
        off = off.model_copy(update={"alarms": acknowledge(off.alarms, _known(acknowledged))})
    change = _change(case, found, prices, planner) if found.open or prices else None
    if as_json:
        console.print_json(json.dumps(as_record(found, prices, change, off)))
    else:
        _show(found, prices, change, off, case.sheet.time_zone)
    if publish is not None:
        try:
            write_drift(publish, off)
        except OSError as problem:
            fail(f"--publish {publish}: cannot be written: {problem.strerror}", code=2)
    return OFF if any(not one.acknowledged for one in off.alarms) else 0


def _known(path: Path) -> tuple[DriftAlarm, ...]:
    try:
        return read_drift(path).alarms
    except PublishedDriftError as problem:
        fail(f"--acknowledged: {problem}; allowed: a file that --publish has written", code=2)


def published(found: Comparison, prices: tuple[PriceDrift, ...], worksheet: str) -> PublishedDrift:
    """What is off now. Traffic that the worksheet does not have is a rate where 0 is expected."""
    alarms = [
        DriftAlarm(
            **_names(drift.stream),
            quantity=drift.quantity.value,
            direction=drift.direction.value,
            expected=drift.expected,
            observed=drift.observed,
            since_unix_s=drift.since_unix_s,
        )
        for drift in found.open
    ]
    rate: dict[str, Any] = {"quantity": DriftQuantity.RATE.value, "direction": "above", "expected": 0.0}
    since: dict[str, Any] = {"since_unix_s": found.from_unix_s}
    alarms += [DriftAlarm(**_names(stream), **rate, **since, observed=observed) for stream, observed in found.unplanned]
    alarms += [
        DriftAlarm(
            model="",
            traffic_class="",
            region=one.region,
            quantity=f"price of {one.gpu}, {one.kind.value}",
            direction="above" if one.observed_usd > one.expected_usd else "below",
            expected=one.expected_usd,
            observed=one.observed_usd,
            **since,
        )
        for one in prices
    ]
    return PublishedDrift(worksheet=worksheet, compared_unix_s=found.to_unix_s, alarms=tuple(alarms))


def _names(stream: Stream) -> dict[str, Any]:
    return {"model": stream.model, "traffic_class": stream.traffic_class, "region": stream.region}


def _recorded(source: str, url: str | None, expected: Expected, time_zone: str) -> Stretches:
    if source == LIVE:
        page = ask(base_url(url), f"/raylane/traffic?period=minute&hours={HOURS}")
        if page["missing"]:
            console.print(f"[yellow]{page['missing']} gateways did not answer: their nodes' traffic may be missing[/]")
        return stretches_of_page(page)
    path = Path(source)
    try:
        if is_recording(path):
            return read_recording(path, Period.MINUTE)
        return _of_trace(source, read_requests(path), expected, time_zone)
    except (RecordingError, TraceError) as problem:
        fail(f"--against: {problem}; allowed: {LIVE}, a gateway's traffic.sqlite, or a trace", code=2)


def _of_trace(source: str, trace: Trace, expected: Expected, time_zone: str) -> Stretches:
    """Second 0 is Monday's midnight in the worksheet's time zone. What a trace does not name must be the same in all
    streams of the worksheet."""
    names = []
    for name, column in (("model", trace.model), ("traffic_class", trace.traffic_class), ("region", trace.region)):
        known = {str(getattr(one.stream, name)) for one in expected.streams}
        if len(known) > 1 and column is None:
            fail(f"--against {source}: names no {name}; the worksheet has {', '.join(sorted(known))}", code=2)
        names.append(sorted(known)[0])
    monday = datetime(1970, 1, 5, tzinfo=zoneinfo.ZoneInfo(time_zone))
    return stretches_of_trace(trace, Stream(*names), monday.timestamp())


def _change(case: Case, found: Comparison, prices: tuple[PriceDrift, ...], planner: Planner) -> PlanChange:
    try:
        return plan_change(planner(case), planner(case_as_recorded(case, found.open, prices)))
    except (PlanError, ValueError) as problem:
        fail(f"the plan for the recorded traffic: {problem}", code=2)


_WORDS = {
    DriftQuantity.RATE: "requests/s",
    DriftQuantity.PROMPT_TOKENS: "prompt tokens",
    DriftQuantity.OUTPUT_TOKENS: "output tokens",
    DriftQuantity.LONG_PROMPTS: "share of long prompts",
    DriftQuantity.LONG_OUTPUTS: "share of long outputs",
    DriftQuantity.PREFIX_SHARE: "prefix share",
}


def _show(
    found: Comparison,
    prices: tuple[PriceDrift, ...],
    change: PlanChange | None,
    published: PublishedDrift,
    time_zone: str,
) -> None:
    zone = zoneinfo.ZoneInfo(time_zone)

    def clock(unix_s: int) -> str:
        return f"{datetime.fromtimestamp(unix_s, zone):%a %H:%M}"

    names = list(dict.fromkeys(_named(drift) for drift in found.open))
    off = [*names, *(f"unplanned: {_of(stream)}" for stream, _ in found.unplanned), *(["prices"] if prices else [])]
    head = (
        f"[bold red]off the worksheet: {escape('; '.join(off))}[/]" if off else "[bold green]as the worksheet says[/]"
    )
    console.print(head)
    if known := sum(one.acknowledged for one in published.alarms):
        console.print(f"acknowledged: {known} of {len(published.alarms)}")
    watched = shown_span(found.watched_s)
    console.print(f"{watched} of traffic, {clock(found.from_unix_s)} to {clock(found.to_unix_s)} ({time_zone})")
    for one in found.incidents:
        figures = "1 figure" if len(one.drifts) == 1 else f"{len(one.drifts)} figures"
        until = "" if one.ended_unix_s is None else f" to {clock(one.ended_unix_s)}"
        console.print(f"incident: {escape(one.model)}, {figures}, alarm {clock(one.raised_unix_s)}{until}")
    for stream in dict.fromkeys(one.stream for one in found.figures):
        console.print(_table(stream, found, clock))
    for stream, rate in found.unplanned:
        console.print(f"[red]not in the worksheet:[/] {escape(_of(stream))}, {_shown(rate)} requests/s")
    for stream in found.unseen:
        console.print(f"no requests: {escape(_of(stream))}")
    for price in prices:
        old, new = price.expected_usd, price.observed_usd
        where = f"{price.gpu} in {price.region}, pool {price.pool}"
        console.print(f"[red]price:[/] {escape(where)}: ${old:,.4g} a GPU-hour planned, ${new:,.4g} by the spec")
    if change is not None:
        _show_change(change)


def _table(stream: Stream, found: Comparison, clock: Callable[[int], str]) -> Table:
    """The figures of a stream over all that was compared, and when they were off."""
    table = Table(title=escape(_of(stream)), title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for column in ("figure", "worksheet", "recorded", ""):
        table.add_column(column, justify="right" if column in ("worksheet", "recorded") else "left")
    for one in found.figures:
        if one.stream == stream:
            state = "; ".join(_state(drift, clock) for drift in found.drifts if _is_of(drift, one))
            table.add_row(_WORDS[one.quantity], _shown(one.expected), _shown(one.observed), escape(state))
    return table


def _show_change(change: PlanChange) -> None:
    table = Table(
        title="Replicas, fewest to most of an hour", title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False
    )
    for column in ("group", "region", "by the worksheet", "as recorded"):
        table.add_column(column, justify="left" if column in ("group", "region") else "right")
    for one in change.groups:
        style = "bold" if one.expected != one.needed else None
        table.add_row(escape(one.group), one.region, _range(one.expected), _range(one.needed), style=style)
    console.print(table)
    before, after = change.expected_usd_per_hour, change.needed_usd_per_hour
    if before is None or after is None:
        which = "the worksheet's" if before is None else "the recorded"
        console.print(f"[red]there is no placement for {which} traffic[/]")
        return
    console.print(f"cost: ${before:,.2f} an hour by the worksheet, ${after:,.2f} as recorded ({after - before:+,.2f})")


def _named(drift: Drift) -> str:
    times = "" if drift.ratio is None else f" {drift.ratio:.2f} times the worksheet's"
    return f"{_WORDS[drift.quantity]} of {_of(drift.stream)}{times}"


def _state(drift: Drift, clock: Callable[[int], str]) -> str:
    end = "" if drift.ended_unix_s is None else f" to {clock(drift.ended_unix_s)}"
    times = "" if drift.ratio is None else f" (x {drift.ratio:.2f})"
    return f"{drift.direction.value} from {clock(drift.since_unix_s)}{end}{times}, alarm {clock(drift.raised_unix_s)}"


def _is_of(drift: Drift, figure: ComparedFigure) -> bool:
    return (drift.stream, drift.quantity) == (figure.stream, figure.quantity)


def _of(stream: Stream) -> str:
    return f"{stream.model}, {stream.traffic_class} in {stream.region or 'all regions'}"


def _shown(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _range(counts: tuple[int, int]) -> str:
    low, high = counts
    return str(high) if low == high else f"{low} to {high}"
