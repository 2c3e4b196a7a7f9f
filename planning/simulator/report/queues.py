"""The panel of the queues: who waits in which lane, and who left it without an answer."""

import numpy as np
import plotly.graph_objects as go

from planning.simulator.report.palette import DASHES, ORANGE, PURPLE, RED, lane_tone
from planning.simulator.report.panel import Clock, Panel, rows_figure
from planning.simulator.timeline import Timeline


def queue_panel(line: Timeline, clock: Clock) -> Panel:
    """(c) Where did the queue stand, and what became of it?"""
    nobody = "" if any(lane.waiting_most.any() for lane in line.lanes) else ": nobody waited"
    titles = [f"Waiting in the lanes, requests (stacked){nobody}", f"Out of turn: rejected, expired, promoted; requests per {_width(line)}"]
    figure, height_px = rows_figure(titles, [190, 100], clock, line.length_s)
    x = clock(line.bins.middles_s)
    for number, lane in enumerate(line.lanes):
        if not lane.arrived.any():
            continue
        tone = lane_tone(number)
        figure.add_trace(
            go.Scatter(
                name=lane.name,
                x=x,
                y=lane.waiting,
                customdata=lane.waiting_most,
                stackgroup="waiting",
                mode="lines",
                line={"color": tone.line, "width": 1.4, "dash": DASHES[number % len(DASHES)]},
                fillcolor=tone.faint,
                hovertemplate="%{y:,} waiting, at most %{customdata:,}",
            ),
            row=1,
            col=1,
        )
    for name, tone, columns in (
        ("rejected", RED, [lane.rejected for lane in line.lanes]),
        ("expired", PURPLE, [lane.expired for lane in line.lanes]),
        ("promoted", ORANGE, [lane.promoted for lane in line.lanes]),
    ):
        total = np.sum(columns, axis=0)
        figure.add_trace(go.Bar(name=name, x=x, y=total, marker={"color": tone.line, "line": {"width": 0}}, hovertemplate="%{y:,}"), row=2, col=1)
    figure.update_layout(barmode="stack", bargap=0)
    caption = (
        "Top: requests held in front of the engines at the end of each bin; a queue that only grows means more work arrives than is done. "
        "Bottom: rejected (turned away on arrival), expired (gave up waiting), promoted (placed out of turn, having waited max_wait_s)."
    )
    return Panel("queue", "Queue by lane", caption, figure, height_px)


def _width(line: Timeline) -> str:
    return f"{line.bins.width_s:g} s"
