"""The page of `raylane drill`: one HTML file that stands alone, with what the clients saw over time, what was lost, and
what the simulation had predicted."""

import math
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version

import numpy as np
import plotly.graph_objects as go

from planning.drill.findings import WINDOW_S
from planning.drill.record import Column, DrillRecord
from planning.drill.result import (
    COMPARED_COLUMNS,
    LINE_COLUMNS,
    MAX_ERROR,
    PHASE_COLUMNS,
    DrillResult,
    DrillRun,
    compared_rows,
    finding_rows,
    percents,
    phase_rows,
    recovery,
    seconds,
)
from planning.report.figures import (
    ORANGE,
    RED,
    Look,
    Panel,
    TimeAxis,
    clock_for,
    lane_tone,
    line_of,
    mark_level,
    rows_figure,
)
from planning.report.layout import in_script, laid_out
from planning.report.words import Card

_ROW_PX = 190
_BIN_S = 1.0
_CROSS_HEIGHT = 0.04
"""Of the longest TTFT: where what was lost is drawn."""
_WINDOW_MIN = 5
"""Fewer requests within a window draw no point."""


@dataclass(frozen=True, slots=True)
class DrillFacts:
    """For the page's foot."""

    command: str
    version: str
    made: str


@dataclass(frozen=True, slots=True)
class DrillTable:
    """One table of the page. `kind`: its class in the style."""

    title: str
    note: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    kind: str = ""


def render(result: DrillResult) -> str:
    """The whole file."""
    panels = _panels(result)
    return laid_out(
        "drill.html",
        result=result,
        how="Simulated" if result.live is None else "Live",
        facts=DrillFacts(
            shlex.join(["raylane", *sys.argv[1:]]),
            version("raylane"),
            datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        ),
        cards=_cards(result),
        panels=panels,
        figures=[(panel.key, in_script(panel.as_json())) for panel in panels],
        tables=_tables(result),
        notes=_notes(result),
    )


def _cards(result: DrillResult) -> list[Card]:
    found = result.seen.findings
    fault = found.of("during", "")
    lost = ", ".join(f"{count} {end.replace('_', ' ')}" for end, count in found.lost.items())
    predicted = f"{'simulated, costs 4 % lower to higher' if result.live is None else 'predicted'}: {result.prediction}"
    cards = [
        Card("SLO held again", recovery(found.recovery_s), predicted),
        Card("Without a whole answer", f"{found.lost_requests:,}", lost or f"of {found.requests:,} requests"),
        Card("SLO met during the fault", percents(fault.met), f"TTFT p99 {seconds(fault.ttft_p99_s)}"),
        Card("Handed over", f"{found.handed_over:,}", percents(found.handed_over / max(1, found.requests))),
    ]
    if found.next_answer_s is not None:
        cards.append(Card("Next answer, p99", f"{found.next_answer_s[1]:.2f} s", "of clients whose cell was gone"))
    if found.replica_s:
        price = "" if found.usd is None else f"${found.usd:,.2f}"
        cards.append(Card("Replica-seconds", f"{sum(found.replica_s.values()):,.0f}", price))
    return cards


def _panels(result: DrillResult) -> list[Panel]:
    clock = clock_for(result.drill.length_s)
    return [_ttft_panel(result, clock), _met_panel(result, clock), _requests_panel(result, clock)]


def _new_figure(result: DrillResult, clock: TimeAxis, titles: Sequence[str]) -> tuple[go.Figure, int]:
    """Rows with the time of the fault in colour."""
    figure, height_px = rows_figure(titles, [_ROW_PX] * len(titles), clock, result.drill.length_s)
    begin_s, until_s = result.drill.phases["during"]
    for row in range(1, len(titles) + 1):
        figure.add_vrect(
            begin_s / clock.seconds,
            until_s / clock.seconds,
            row=row,
            col=1,
            fillcolor=RED.faint,
            opacity=0.35,
            line_width=0,
            layer="below",
            exclude_empty_subplots=False,
        )
    return figure, height_px


def _ttft_panel(result: DrillResult, clock: TimeAxis) -> Panel:
    """TTFT by cell: every request, by when it was sent."""
    record, slo_s = result.seen.record, result.slo.ttft_s
    figure, height_px = _new_figure(result, clock, [f"clients of {name}: TTFT (s)" for name in record.cells])
    for number in range(len(record.cells)):
        own = record.home == number
        for kept, label, tone in (
            (own & ~record.handed_over, "served where it was asked", lane_tone(0)),
            (own & record.handed_over, "handed over", ORANGE),
        ):
            figure.add_trace(
                go.Scatter(
                    name=label,
                    x=record.sent_s[kept] / clock.seconds,
                    y=record.ttft_s[kept],
                    mode="markers",
                    marker={"size": 4, "color": tone.line},
                    legendgroup=label,
                    showlegend=number == 0,
                    hovertemplate="%{y:.3f} s",
                ),
                row=number + 1,
                col=1,
            )
        _mark_lost(figure, record, number, clock)
        mark_level(figure, number + 1, slo_s, f"SLO {slo_s:g} s")
    return Panel(
        "ttft",
        "Time to first token",
        "Each dot is a request, at the time at which its client sent it; the time to its first token counts every "
        "endpoint that the client tried. Crosses at the bottom got no whole answer. The coloured time is that of the "
        "fault.",
        figure,
        height_px,
    )


def _mark_lost(figure: go.Figure, record: DrillRecord, number: int, clock: TimeAxis) -> None:
    lost = (record.home == number) & np.isnan(record.finished_s)
    figure.add_trace(
        go.Scatter(
            name="no whole answer",
            x=record.sent_s[lost] / clock.seconds,
            y=np.full(int(lost.sum()), _CROSS_HEIGHT * np.nanmax(record.ttft_s, initial=0.1)),
            mode="markers",
            marker={"size": 8, "symbol": "x-thin", "line": {"width": 1.6, "color": RED.line}, "color": RED.line},
            legendgroup="no whole answer",
            showlegend=number == 0,
            hovertemplate="no whole answer",
        ),
        row=number + 1,
        col=1,
    )


def _met_panel(result: DrillResult, clock: TimeAxis) -> Panel:
    """The share of requests that met the SLO in the window that begins at each second; simulated, where both are
    known, dashed."""
    figure, height_px = _new_figure(result, clock, [f"SLO met, % of the requests within {WINDOW_S:g} s"])
    runs: list[tuple[DrillRun, str]] = [(result.seen, "solid")]
    if result.live is not None:
        runs.append((result.simulated, "dot"))
    for run, dash in runs:
        for number, name in enumerate(run.record.cells):
            label = f"clients of {name}" + ("" if dash == "solid" else ", simulated")
            x, y = _met_curve(run.record, number, result)
            figure.add_trace(line_of(label, clock(x), y, lane_tone(number), ".1f %", Look(dash=dash)), row=1, col=1)
    mark_level(figure, 1, 100 * result.slo.share, f"attainment {100 * result.slo.share:g} %")
    figure.update_yaxes(range=[0, 104])
    return Panel(
        "met",
        "SLO met",
        f"Of the requests that a cell's clients sent within the next {WINDOW_S:g} s, those whose first token came "
        "within the SLO. No window begins before the fault and ends after it.",
        figure,
        height_px,
    )


def _met_curve(record: DrillRecord, number: int, result: DrillResult) -> tuple[Column, Column]:
    own = record.home == number
    times, good = record.sent_s[own], record.met(result.slo.ttft_s)[own]
    begins = _seconds(max(_BIN_S, result.drill.length_s - WINDOW_S))
    first, beyond = np.searchsorted(times, begins), np.searchsorted(times, begins + WINDOW_S)
    total = np.concatenate([[0], np.cumsum(good)])
    count = beyond - first
    clear = (begins >= result.drill.at_s) | (begins + WINDOW_S <= result.drill.at_s)
    share = np.where(
        clear & (count >= _WINDOW_MIN), 100 * (total[beyond] - total[first]) / np.maximum(count, 1), math.nan
    )
    return begins, share.astype(np.float64)


def _seconds(until_s: float) -> Column:
    return np.arange(0.0, until_s, _BIN_S, dtype=np.float64)


def _requests_panel(result: DrillResult, clock: TimeAxis) -> Panel:
    """Requests a second by the cell that served them, and those that were handed over."""
    record = result.seen.record
    figure, height_px = _new_figure(
        result, clock, ["requests/s, by the cell that served them", "requests/s handed over"]
    )
    edges = _seconds(math.ceil(result.drill.length_s) + _BIN_S)
    for number, name in enumerate(record.cells):
        served, _ = np.histogram(record.sent_s[record.served == number], edges)
        moved, _ = np.histogram(record.sent_s[record.handed_over & (record.served == number)], edges)
        tone, middles = lane_tone(number), clock(edges[:-1] + _BIN_S / 2)
        figure.add_trace(line_of(name, middles, served / _BIN_S, tone, ".1f /s"), row=1, col=1)
        figure.add_trace(line_of(name, middles, moved / _BIN_S, tone, ".1f /s", Look(named=False)), row=2, col=1)
    return Panel(
        "requests",
        "Who served them",
        "By when they were sent. A request that its client sent to another cell by itself is not handed over.",
        figure,
        height_px,
    )


def _tables(result: DrillResult) -> list[DrillTable]:
    found, how = result.seen.findings, "simulated" if result.live is None else "live"
    tables = [
        DrillTable(
            "What was lost, and what it took",
            f"Of the {how} run.",
            LINE_COLUMNS,
            finding_rows(found, result.drill),
            "text",
        ),
        DrillTable(
            "By cell and phase",
            f"Of the {how} run, by when requests were sent.",
            PHASE_COLUMNS,
            phase_rows(found),
        ),
    ]
    if result.live is not None:
        tables.insert(
            0,
            DrillTable(
                "Predicted and seen",
                "The simulated drill got the requests at the times at which the live clients sent them.",
                COMPARED_COLUMNS,
                compared_rows(result.compared),
            ),
        )
    return tables


def _notes(result: DrillResult) -> list[str]:
    rates = ", ".join(f"{name} {rate:.2f}" for name, rate in result.rates().items())
    trips = ", ".join(f"{' and '.join(sorted(pair))} {1e3 * rtt_s:g} ms" for pair, rtt_s in result.rtt_s.items())
    notes = [
        f"Clients send in an open loop, as a Poisson process: requests a second by region: {rates}.",
        f"Round trips: {trips}.",
        f"The SLO: a first token within {result.slo.ttft_s:g} s for {100 * result.slo.share:g} % of the requests of "
        f"each region's clients, within every {WINDOW_S:g} s.",
        "A client knows the endpoints of all cells, asks that of its own region first, and sends a request again whose "
        "answer broke; the second one counts from the break.",
    ]
    if result.live is not None:
        notes.append(
            f"The simulated drill is to be within {100 * MAX_ERROR:g} % of the time until the SLO holds again."
        )
        if result.came_back:
            notes.append(f"{result.came_back}.")
        notes.append(f"The clients were at most {1e3 * (result.late_s or 0.0):.0f} ms late with a request.")
    return notes
