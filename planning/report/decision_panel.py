"""The panel of a simulated run's decisions: what was decided and for which reason, and what lanes waited for."""

from collections.abc import Sequence
from itertools import groupby

import numpy as np
import plotly.graph_objects as go

from planning.report.figures import BLUE, ORANGE, PURPLE, RED, SLATE, Panel, TimeAxis, Tone, draw, time_figure
from planning.report.simulated_run import DecisionCount, DecisionKind
from planning.simulator.bins import Column
from planning.simulator.timeline import Timeline

_TONES: dict[DecisionKind, Tone] = {
    DecisionKind.REJECTED: RED,
    DecisionKind.EXPIRED: PURPLE,
    DecisionKind.PROMOTED: ORANGE,
    DecisionKind.REPLICAS: BLUE,
}
_STRIPE_PX = 22


def events_panel(line: Timeline, decided: Sequence[DecisionCount], clock: TimeAxis) -> Panel:
    """(g) What did the scheduler decide, and for which reason?"""
    rows = (_decided(line, decided), _waited(line))
    heights = [_STRIPE_PX * max(2, len(row)) for row in rows]
    titles = ["Decisions by lane, kind and reason", "What the head of each lane waited for"]
    figure, height_px = time_figure(titles, heights, clock, line.length_s, legend=False)
    for number, row in enumerate(rows, start=1):
        for place, stripe in enumerate(reversed(row)):
            draw(figure, number, _stripe(clock(line.bins.middles_s), place, *stripe))
        if not row:
            draw(figure, number, go.Scatter(x=[None], y=[None], showlegend=False))
        names = [name for name, *_ in reversed(row)] or ["none"]
        ticks = {"tickvals": list(range(len(names))), "ticktext": names, "range": [-0.5, len(names) - 0.5]}
        figure.update_yaxes(**ticks, rangemode="normal", row=number, col=1)
    figure.update_yaxes(automargin=True, showgrid=False, tickfont={"size": 11})
    figure.update_layout(hovermode="closest")
    caption = (
        f"Above: stronger where more was decided within {line.bins.width_s:g} s. Below: stronger where the head of "
        "that lane waited for that for more of the time. What each word means stands in docs/operations.md."
    )
    return Panel("decisions", "Decisions and their reasons", caption, figure, height_px)


Stripe = tuple[str, Tone, Column, list[str]]
"""The name, the colour, how strong (0 to 1) in each bin, and what is said there."""


def _decided(line: Timeline, decided: Sequence[DecisionCount]) -> list[Stripe]:
    stripes = []
    ordered = sorted(decided, key=lambda one: (list(DecisionKind).index(one.kind), one.what, one.reason, one.at_s))
    for (kind, what, reason), group in groupby(ordered, key=lambda one: (one.kind, one.what, one.reason)):
        own = list(group)
        times, counts = (np.array([getattr(one, name) for one in own], dtype=np.float64) for name in ("at_s", "count"))
        count = line.bins.sums(times, counts)
        said = [f"{number:,.0f} {kind}" for number in count]
        stripes.append((f"{what}: {kind}, {reason}", _TONES[kind], np.sqrt(count / count.max()), said))
    return stripes


def _waited(line: Timeline) -> list[Stripe]:
    return [
        (f"{lane}: {reason}", SLATE, share, [f"{number:.0%} of the time" for number in share])
        for (lane, reason), share in sorted(line.waits.items())
    ]


def _stripe(x: object, place: int, name: str, tone: Tone, values: Column, said: list[str]) -> go.Heatmap:
    return go.Heatmap(
        x=x,
        y=[place],
        z=[[round(value, 3) if value > 0 else None for value in values.tolist()]],
        zmin=0,
        zmax=1,
        colorscale=[[0, tone.faint], [1, tone.line]],
        showscale=False,
        hoverongaps=False,
        ygap=4,
        text=[said],
        name=name,
        hovertemplate=name + ": %{text} around %{x:.1f}<extra></extra>",
    )
