"""The panels of a simulated run's report: TTFT, queues, arrivals against service, and replicas."""

from collections.abc import Sequence

import numpy as np
import plotly.graph_objects as go

from cluster.spec import TrafficClass
from planning.report.facts import RunFacts
from planning.report.figures import (
    BLUE,
    DASHES,
    GREEN,
    INK,
    ORANGE,
    PURPLE,
    RED,
    SLATE,
    Look,
    Panel,
    TimeAxis,
    Tone,
    draw,
    lane_tone,
    line_of,
    mark_level,
    time_figure,
)
from planning.report.words import bound
from planning.simulator.timeline import Timeline


def latency_panel(line: Timeline, classes: Sequence[TrafficClass], clock: TimeAxis) -> Panel:
    """(b) When, and in which lane, was the SLO missed?"""
    shown = [(number, lane) for number, lane in enumerate(line.lanes) if lane.arrived.any()]
    titles = [
        "Requests in time, % of those that arrived",
        *(f"TTFT, lane {lane.name}, seconds (log scale)" for _, lane in shown),
    ]
    figure, height_px = time_figure(titles, [110, *[140] * len(shown)], clock, line.length_s)
    x = clock(line.bins.middles_s)
    arrived, missed = (np.sum([getattr(lane, name) for lane in line.lanes], axis=0) for name in ("arrived", "missed"))
    with np.errstate(divide="ignore", invalid="ignore"):
        in_time = 100 * (1 - missed / arrived)
    draw(figure, 1, line_of("in time", x, in_time, INK, ".1f %", Look(named=False)))
    for share in sorted({one.attainment for one in classes}):
        mark_level(figure, 1, 100 * share, f"SLO {100 * share:g} %")
    low = 10 * np.floor(max(0.0, float(np.nanmin(in_time, initial=100.0)) - 5) / 10)
    figure.update_yaxes(range=[low, 100 + 0.04 * (100 - low)], rangemode="normal", row=1, col=1)
    for row, (number, lane) in enumerate(shown, start=2):
        tone = lane_tone(number)
        draw(figure, row, line_of(f"{lane.name} p50", x, lane.ttft_p50_s, tone, ".3s s", Look("dot", points=True)))
        draw(figure, row, line_of(f"{lane.name} p95", x, lane.ttft_p95_s, tone, ".3s s", Look(points=True)))
        for one in classes:
            name, ttft_s = f" {one.name}" if len(classes) > 1 else "", one.ttft_ms / 1e3
            mark_level(figure, row, ttft_s, f"SLO{name} {bound(ttft_s)}", log=True)
        figure.update_yaxes(type="log", range=_decades(line, classes), dtick=1, row=row, col=1)
    caption = (
        "A request counts where it arrived. Solid: p95, dotted: p50, dashed red: the SLO; where the p95 is above it, "
        "more than 1 in 20 missed it. Rejected and expired requests have no TTFT: they show in the top row alone. A "
        "gap: nobody who arrived then was answered."
    )
    return Panel("ttft", "Time to first token", caption, figure, height_px)


def _decades(line: Timeline, classes: Sequence[TrafficClass]) -> list[float]:
    """The powers of ten that all lanes and the SLOs lie between: one scale for all rows."""
    known = np.concatenate(
        [column[~np.isnan(column)] for lane in line.lanes for column in (lane.ttft_p50_s, lane.ttft_p95_s)]
    )
    values = np.concatenate([known[known > 0], [one.ttft_ms / 1e3 for one in classes]])
    low, high = (float(np.log10(value)) for value in (values.min(), values.max())) if len(values) else (-2.0, 1.0)
    return [np.floor(low * 2) / 2, np.ceil(high * 2 + 0.3) / 2]


def queue_panel(line: Timeline, clock: TimeAxis) -> Panel:
    """(c) Where did the queue stand, and what became of it?"""
    nobody = "" if any(lane.waiting_max.any() for lane in line.lanes) else ": nobody waited"
    titles = [
        f"Waiting in the lanes, requests (stacked){nobody}",
        f"Out of turn: rejected, expired, promoted; requests per {line.bins.width_s:g} s",
    ]
    figure, height_px = time_figure(titles, [190, 100], clock, line.length_s)
    x = clock(line.bins.middles_s)
    for number, lane in enumerate(line.lanes):
        if not lane.arrived.any():
            continue
        tone = lane_tone(number)
        waiting = go.Scatter(
            name=lane.name,
            x=x,
            y=lane.waiting,
            customdata=lane.waiting_max,
            stackgroup="waiting",
            mode="lines",
            line={"color": tone.line, "width": 1.4, "dash": DASHES[number % len(DASHES)]},
            fillcolor=tone.faint,
            hovertemplate="%{y:,} waiting, at most %{customdata:,}",
        )
        draw(figure, 1, waiting)
    for name, tone in (("rejected", RED), ("expired", PURPLE), ("promoted", ORANGE)):
        total = np.sum([getattr(lane, name) for lane in line.lanes], axis=0)
        look = {"color": tone.line, "line": {"width": 0}}
        draw(figure, 2, go.Bar(name=name, x=x, y=total, marker=look, hovertemplate="%{y:,}"))
    figure.update_layout(barmode="stack", bargap=0)
    caption = (
        "Top: requests held in front of the engines at the end of each bin; a queue that only grows means more work "
        "arrives than is done. Bottom: rejected (turned away on arrival), expired (gave up waiting), promoted (placed "
        "out of turn, having waited max_wait_s)."
    )
    return Panel("queue", "Queue by lane", caption, figure, height_px)


def service_panel(line: Timeline, clock: TimeAxis) -> Panel:
    """(d) Did more arrive than was served, and was it requests, prompts or answers?"""
    titles = ["Requests/s", "Prompt tokens/s", "Output tokens/s"]
    figure, height_px = time_figure(titles, [140, 130, 130], clock, line.length_s)
    x, width, cell = clock(line.bins.middles_s), line.bins.width_s, line.cell
    arrived = np.sum([lane.arrived for lane in line.lanes], axis=0)
    for row, came, done in (
        (1, arrived, cell.finished),
        (2, cell.prompt_tokens_offered, cell.prompt_tokens),
        (3, cell.output_tokens_offered, cell.output_tokens),
    ):
        area = Look(width=0.6, area=True, named=row == 1)
        draw(figure, row, line_of("arrived", x, came / width, SLATE, ",.3s /s", area))
        draw(figure, row, line_of("served", x, done / width, BLUE, ",.3s /s", Look(named=row == 1)))
    caption = (
        "Grey area: what arrived, by when its request arrived (output tokens: those that it would get); blue line: "
        "what was finished, prefilled and decoded then. A flat line below the top of the area is the cell at its limit."
    )
    return Panel("service", "Arrivals and service", caption, figure, height_px)


_STATE_TONES = {"ready": GREEN, "warming": ORANGE, "draining": PURPLE}


def capacity_panel(line: Timeline, facts: RunFacts, clock: TimeAxis) -> Panel:
    """(e) What limited the replicas: sequences or KV?"""
    titles = ["Replicas", "Sequences running in all engines, and waiting inside them", "KV cache in use, %"]
    figure, height_px = time_figure(titles, [90, 130, 130], clock, line.length_s)
    x, cell = clock(line.bins.middles_s), line.cell
    max_replicas = float(np.sum(list(cell.replicas.values()), axis=0).max())
    for state, tone in _STATE_TONES.items():
        if cell.replicas[state].any():
            draw(figure, 1, _stacked(state, x, cell.replicas[state], tone))
    figure.update_yaxes(dtick=max(1, round(max_replicas / 3)), range=[0, 1.15 * max_replicas], row=1, col=1)
    draw(figure, 2, line_of("running", x, cell.running, BLUE, ",.0f sequences"))
    draw(figure, 2, line_of("waiting inside", x, cell.inside, SLATE, ",.0f sequences", Look("dot")))
    maximum = facts.cost.limits().sequences * float(cell.replicas["ready"].max())
    if float(cell.running.max()) > 0.4 * maximum:
        mark_level(figure, 2, maximum, f"max_num_seqs x replicas: {maximum:,.0f}", SLATE)
    draw(figure, 3, line_of("KV, fullest engine", x, 100 * cell.kv_max, ORANGE, ".0f %", Look("dot")))
    draw(figure, 3, line_of("KV, mean", x, 100 * cell.kv_mean, ORANGE, ".0f %"))
    figure.update_yaxes(range=[0, 105], row=3, col=1)
    caption = (
        "A request is bound to a replica only while its sequences, KV tokens and prefill backlog have room. KV is "
        "booked ahead for the output to come, so a full cache shows as a flat line some way below 100 %. Sequences "
        "near the dashed level: max_num_seqs is the limit; neither, with a queue: prefill is."
    )
    return Panel("capacity", "Replicas and KV use", caption, figure, height_px)


def _stacked(name: str, x: object, y: object, tone: Tone) -> go.Scatter:
    return go.Scatter(
        name=name,
        x=x,
        y=y,
        stackgroup="replicas",
        mode="lines",
        line={"color": tone.line, "width": 1.4, "shape": "hvh"},
        fillcolor=tone.faint,
        hovertemplate="%{y:.1f} replicas",
    )
