"""The panel of the replicas: how many there are, what runs on them, and how full their KV caches are."""

import numpy as np
import plotly.graph_objects as go

from planning.simulator.report.facts import Facts
from planning.simulator.report.palette import BLUE, GREEN, ORANGE, PURPLE, RED, SLATE, Tone
from planning.simulator.report.panel import Clock, Look, Panel, line_of, mark_level, rows_figure
from planning.simulator.timeline import Timeline

_STATE_TONES: dict[str, Tone] = {"ready": GREEN, "warming": ORANGE, "draining": PURPLE, "failed": RED}


def capacity_panel(line: Timeline, facts: Facts, clock: Clock) -> Panel:
    """(e) What limited the replicas: sequences or KV?"""
    titles = ["Replicas", "Sequences running in all engines, and waiting inside them", "KV cache in use, %"]
    figure, height_px = rows_figure(titles, [90, 130, 130], clock, line.length_s)
    x, cell = clock(line.bins.middles_s), line.cell
    most_replicas = float(np.sum(list(cell.replicas.values()), axis=0).max())
    for state, tone in _STATE_TONES.items():
        if cell.replicas[state].any():
            figure.add_trace(_stacked(state, x, cell.replicas[state], tone), row=1, col=1)
    figure.update_yaxes(dtick=max(1, round(most_replicas / 3)), range=[0, 1.15 * most_replicas], row=1, col=1)
    figure.add_trace(line_of("running", x, cell.running, BLUE, ",.0f sequences"), row=2, col=1)
    figure.add_trace(line_of("waiting inside", x, cell.inside, SLATE, ",.0f sequences", Look(dash="dot")), row=2, col=1)
    most = facts.sequences * float(cell.replicas["ready"].max())
    if float(cell.running.max()) > 0.4 * most:
        mark_level(figure, 2, most, f"max_num_seqs x replicas: {most:,.0f}", SLATE)
    figure.add_trace(line_of("KV, fullest engine", x, 100 * cell.kv_most, ORANGE, ".0f %", Look(dash="dot")), row=3, col=1)
    figure.add_trace(line_of("KV, mean", x, 100 * cell.kv_mean, ORANGE, ".0f %"), row=3, col=1)
    figure.update_yaxes(range=[0, 105], row=3, col=1)
    caption = (
        "A request is bound to a replica only while its sequences, KV tokens and prefill backlog have room. KV is booked ahead for the output to "
        "come, so a full cache shows as a flat line some way below 100 %. Sequences near the dashed level: max_num_seqs is the limit; neither, "
        "with a queue: prefill is."
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
