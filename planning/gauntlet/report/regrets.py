"""The figure of the regrets: each law's replica-hours over the recorded days, split into what nobody could have saved and what is the law's own."""

from collections.abc import Sequence

import plotly.graph_objects as go

from planning.gauntlet.report.figure import empty_figure
from planning.gauntlet.verdict import Regret
from planning.simulator.report.palette import BLUE, ORANGE, SLATE
from planning.simulator.words import attained

_ROW_PX, _AROUND_PX = 34, 90


def regret_figure(regrets: Sequence[Regret], ours: str) -> go.Figure:
    """A bar a law, the cheapest on top; a law under the promise is cheap for that reason, so its attainment stands at the bar."""
    figure = empty_figure("replica-hours", "")
    ordered = sorted(regrets, key=lambda one: -one.hours)
    names = [f"<b>{one.law}</b>" if one.law == ours else one.law for one in ordered]
    parts = (
        ("the oracle's", SLATE, [one.oracle for one in ordered]),
        ("for not knowing the arrivals", ORANGE, [one.unavoidable for one in ordered]),
        ("the law's own", BLUE, [one.ours for one in ordered]),
    )
    for name, tone, hours in parts:
        bar = go.Bar(name=name, y=names, x=hours, orientation="h", marker={"color": tone.line}, hovertemplate=f"{name}: %{{x:.2f}} h<extra></extra>")
        figure.add_trace(bar)
    most = max((one.hours for one in ordered), default=1.0)
    for name, one in zip(names, ordered, strict=True):
        text = f"{attained(one.attainment)}, {one.hours:.2f} h"
        figure.add_annotation(x=max(one.hours, one.oracle + one.unavoidable), y=name, text=text, showarrow=False, xanchor="left", xshift=6)
    figure.update_layout(
        barmode="relative",
        height=_ROW_PX * len(ordered) + _AROUND_PX,
        showlegend=True,
        legend={"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom", "traceorder": "normal"},
        margin={"l": 110, "r": 12, "t": 34, "b": 46},
    )
    figure.update_xaxes(range=[0, 1.3 * most])
    return figure
