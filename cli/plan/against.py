"""`raylane plan WORKSHEET --against`: what of the traffic and the prices has left the worksheet, and what that does to
the plan."""

import zoneinfo
from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from rich.markup import escape

from cli.console import Table, complain, console, fail, plain_table, print_json, shown_span
from cli.gateway import ask, base_url
from cluster.spec import ClusterSpec
from deployments.traffic.counts import Period, Stream, Stretches, StretchRecord
from deployments.traffic.published_drift import OffFigure, PublishedDrift, write_drift
from deployments.wire import to_json
from planning.drift.comparison import ComparedFigure, Comparison, DriftQuantity, ExpectedStream, compare
from planning.drift.recording import (
    RecordingError,
    is_recording,
    of_all_tenants,
    read_recording,
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


def against(source: str, url: str | None, case: Case, planner: Planner, publish: Path | None, as_json: bool) -> int:
    """Compares the worksheet with `live`, a recording or a trace, and prints it. Returns the exit code."""
    expected = expected_from(case.sheet, case.streams)
    recorded = _recorded(source, url, expected, case.sheet.time_zone)
    try:
        found = compare(expected, recorded)
    except ValueError as problem:
        fail(f"--against {source}: {problem}", code=2)
    live = ClusterSpec.model_validate(ask(base_url(url), "/raylane/spec", dict)) if source == LIVE else case.spec
    prices = price_drifts(case.sheet, case.spec, live)
    off = published(found, prices, case.sheet.name)
    if publish is not None:
        write_drift(publish, off)
    if not as_json:
        _show(found, prices, case.sheet.time_zone)
    change = _change(case, found, prices, planner) if found.off or prices else None
    if as_json:
        print_json(to_json({"off": off.figures, "compared": found, "prices": prices, "plan": change}))
    elif change is not None:
        _show_change(change)
    return OFF if off.figures else 0


def published(found: Comparison, prices: tuple[PriceDrift, ...], worksheet: str) -> PublishedDrift:
    """What is off now. Traffic that the worksheet does not have is a rate where 0 is expected."""
    figures = [
        OffFigure(**_names(one.stream), quantity=one.quantity.value, expected=off.expected, observed=off.observed)
        for one in found.off
        if (off := one.off)
    ]
    figures += [
        OffFigure(**_names(stream), quantity=DriftQuantity.RATE.value, expected=0.0, observed=observed)
        for stream, observed in found.unplanned
    ]
    figures += [
        OffFigure(
            model="",
            traffic_class="",
            region=one.region,
            quantity=f"price of {one.gpu}, {one.kind.value}",
            expected=one.expected_usd,
            observed=one.observed_usd,
        )
        for one in prices
    ]
    return PublishedDrift(worksheet=worksheet, compared_unix_s=found.to_unix_s, figures=tuple(figures))


def _names(stream: Stream) -> dict[str, Any]:
    return {"model": stream.model, "traffic_class": stream.traffic_class, "region": stream.region}


def _recorded(source: str, url: str | None, expected: Sequence[ExpectedStream], time_zone: str) -> Stretches:
    if source == LIVE:
        return of_all_tenants(ask(base_url(url), f"/raylane/traffic?period=minute&hours={HOURS}", StretchRecord))
    path = Path(source)
    try:
        if is_recording(path):
            return read_recording(path, Period.MINUTE)
        return _of_trace(source, read_requests(path), expected, time_zone)
    except (RecordingError, TraceError) as problem:
        fail(f"--against: {problem}; allowed: {LIVE}, a cell's cell.sqlite, or a trace", code=2)


def _of_trace(source: str, trace: Trace, expected: Sequence[ExpectedStream], time_zone: str) -> Stretches:
    """Second 0 is Monday's midnight in the worksheet's time zone. What a trace does not name must be the same in all
    streams of the worksheet."""
    names = []
    for name, column in (("model", trace.model), ("traffic_class", trace.traffic_class), ("region", trace.region)):
        known = {str(getattr(one.stream, name)) for one in expected}
        if len(known) > 1 and column is None:
            fail(f"--against {source}: names no {name}; the worksheet has {', '.join(sorted(known))}", code=2)
        names.append(sorted(known)[0])
    monday = datetime(1970, 1, 5, tzinfo=zoneinfo.ZoneInfo(time_zone))
    return stretches_of_trace(trace, Stream(*names), monday.timestamp())


def _change(case: Case, found: Comparison, prices: tuple[PriceDrift, ...], planner: Planner) -> PlanChange | None:
    """None where there is no plan for the recorded traffic: it says why."""
    try:
        return plan_change(planner(case), planner(case_as_recorded(case, found.off, prices)))
    except (PlanError, ValueError) as problem:
        complain(f"the plan for the recorded traffic: {problem}")
        return None


_WORDS = {
    DriftQuantity.RATE: "requests/s",
    DriftQuantity.PROMPT_TOKENS: "prompt tokens",
    DriftQuantity.OUTPUT_TOKENS: "output tokens",
    DriftQuantity.PREFIX_SHARE: "prefix share",
}


def _show(found: Comparison, prices: tuple[PriceDrift, ...], time_zone: str) -> None:
    zone = zoneinfo.ZoneInfo(time_zone)

    def clock(unix_s: int) -> str:
        return f"{datetime.fromtimestamp(unix_s, zone):%a %H:%M}"

    names = [_named(one) for one in found.off]
    off = [*names, *(f"unplanned: {_of(stream)}" for stream, _ in found.unplanned), *(["prices"] if prices else [])]
    head = (
        f"[bold red]off the worksheet: {escape('; '.join(off))}[/]" if off else "[bold green]as the worksheet says[/]"
    )
    console.print(head)
    watched = shown_span(found.watched_s)
    console.print(f"{watched} of traffic, {clock(found.from_unix_s)} to {clock(found.to_unix_s)} ({time_zone})")
    for stream in dict.fromkeys(one.stream for one in found.figures):
        console.print(_table(stream, found, clock))
    for stream, rate in found.unplanned:
        console.print(f"[red]not in the worksheet:[/] {escape(_of(stream))}, {_shown(rate)} requests/s")
    for stream in found.unseen:
        console.print(f"no requests: {escape(_of(stream))}")
    for price in prices:
        old, new = price.expected_usd, price.observed_usd
        where = f"{price.gpu} in {price.region}, pool {price.pool}"
        unit = "replica-hour" if price.gpu == "cpu" else "GPU-hour"
        console.print(f"[red]price:[/] {escape(where)}: ${old:,.4g} a {unit} planned, ${new:,.4g} by the spec")


def _table(stream: Stream, found: Comparison, clock: Callable[[int], str]) -> Table:
    """The figures of a stream over all hours and in the last one, and the hours in which they were off."""
    table = plain_table("figure", "worksheet", "recorded", "last hour", "hours off", left=1, title=escape(_of(stream)))
    for one in found.figures:
        if one.stream == stream:
            hours = [hour for hour in one.hours if hour.is_off]
            when = "" if not hours else f"{len(hours)} of {len(one.hours)}, last {clock(hours[-1].begin_unix_s)}"
            last = one.hours[-1]
            state = f"{_shown(last.observed)} of {_shown(last.expected)}"
            row = _WORDS[one.quantity], _shown(one.whole.expected), _shown(one.whole.observed), state, when
            table.add_row(*row, style=None if one.off is None else "bold red")
    return table


def _show_change(change: PlanChange) -> None:
    title = "Replicas, fewest to most of an hour"
    table = plain_table("model", "group", "region", "by the worksheet", "as recorded", left=3, title=title)
    for one in change.groups:
        style = "bold" if one.expected != one.needed else None
        table.add_row(
            escape(one.model), escape(one.group), one.region, _range(one.expected), _range(one.needed), style=style
        )
    console.print(table)
    before, after = change.expected_usd_per_hour, change.needed_usd_per_hour
    if before is None or after is None:
        which = "the worksheet's" if before is None else "the recorded"
        console.print(f"[red]there is no placement for {which} traffic[/]")
        return
    console.print(f"cost: ${before:,.2f} an hour by the worksheet, ${after:,.2f} as recorded ({after - before:+,.2f})")


def _named(figure: ComparedFigure) -> str:
    assert figure.off is not None
    when = "" if figure.off is figure.whole else " in the last hour"
    times = "" if not figure.off.expected else f" {figure.off.ratio:.2f} times the worksheet's"
    return f"{_WORDS[figure.quantity]} of {_of(figure.stream)}{when}{times}"


def _of(stream: Stream) -> str:
    return f"{stream.model}, {stream.traffic_class} in {stream.region or 'all regions'}"


def _shown(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _range(counts: tuple[int, int]) -> str:
    low, high = counts
    return str(high) if low == high else f"{low} to {high}"
