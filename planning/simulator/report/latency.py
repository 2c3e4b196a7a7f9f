"""The panel of TTFT: the share of requests in time, and the times of each lane against the SLO."""

from collections.abc import Sequence

import numpy as np

from planning.simulator.report.facts import Target
from planning.simulator.report.palette import INK, lane_tone
from planning.simulator.report.panel import Clock, Look, Panel, line_of, mark_level, rows_figure
from planning.simulator.timeline import Timeline
from planning.simulator.words import bound


def latency_panel(line: Timeline, targets: Sequence[Target], clock: Clock) -> Panel:
    """(b) When, and in which lane, was the SLO missed?"""
    shown = [(number, lane) for number, lane in enumerate(line.lanes) if lane.arrived.any()]
    titles = ["Requests in time, % of those that arrived", *(f"TTFT, lane {lane.name}, seconds (log scale)" for _, lane in shown)]
    figure, height_px = rows_figure(titles, [110, *[140] * len(shown)], clock, line.length_s)
    x = clock(line.bins.middles_s)
    arrived, missed = (np.sum([getattr(lane, name) for lane in line.lanes], axis=0) for name in ("arrived", "missed"))
    with np.errstate(divide="ignore", invalid="ignore"):
        in_time = 100 * (1 - missed / arrived)
    figure.add_trace(line_of("in time", x, in_time, INK, ".1f %", Look(named=False)), row=1, col=1)
    for share in sorted({target.attainment for target in targets}):
        mark_level(figure, 1, 100 * share, f"promised {100 * share:g} %")
    low = 10 * np.floor(max(0.0, float(np.nanmin(in_time, initial=100.0)) - 5) / 10)
    figure.update_yaxes(range=[low, 100 + 0.04 * (100 - low)], rangemode="normal", row=1, col=1)
    for row, (number, lane) in enumerate(shown, start=2):
        tone = lane_tone(number)
        figure.add_trace(line_of(f"{lane.name} p50", x, lane.ttft_p50_s, tone, ".3s s", Look(dash="dot", points=True)), row=row, col=1)
        figure.add_trace(line_of(f"{lane.name} p95", x, lane.ttft_p95_s, tone, ".3s s", Look(points=True)), row=row, col=1)
        for target in targets:
            name = f" {target.name}" if len(targets) > 1 else ""
            mark_level(figure, row, target.ttft_s, f"SLO{name} {bound(target.ttft_s)}", log=True)
        figure.update_yaxes(type="log", range=_decades(line, targets), dtick=1, row=row, col=1)
    caption = (
        "A request counts where it arrived. Solid: p95, dotted: p50, dashed red: the SLO; where the p95 is above it, more than 1 in 20 missed it. "
        "Rejected and expired requests have no TTFT: they show in the top row alone. A gap: nobody who arrived then was answered."
    )
    return Panel("ttft", "Time to first token", caption, figure, height_px)


def _decades(line: Timeline, targets: Sequence[Target]) -> list[float]:
    """The powers of ten that all lanes and the SLOs lie between: one scale for all rows."""
    known = np.concatenate([column[~np.isnan(column)] for lane in line.lanes for column in (lane.ttft_p50_s, lane.ttft_p95_s)])
    values = np.concatenate([known[known > 0], [target.ttft_s for target in targets]])
    low, high = (float(np.log10(value)) for value in (values.min(), values.max())) if len(values) else (-2.0, 1.0)
    return [np.floor(low * 2) / 2, np.ceil(high * 2 + 0.3) / 2]
