"""The figure of a sweep: what of the promise each law's pick keeps as one figure of the world grows."""

from collections.abc import Mapping

import plotly.graph_objects as go

from planning.gauntlet.report.figure import empty_figure
from planning.gauntlet.report.marks import Mark
from planning.gauntlet.results import Results
from planning.gauntlet.verdict import cliffs
from planning.simulator.report.palette import GREEN


def sweep_figure(results: Results, steps: Mapping[str, float], what: str, target: float, marks: Mapping[str, Mark]) -> go.Figure:
    """A line a law."""
    figure = empty_figure(what, "first tokens in time, %")
    for law, mark in sorted(marks.items(), key=lambda one: one[1].ours):
        found, _ = cliffs(results, steps, law)
        figure.add_trace(
            go.Scatter(
                name=law,
                x=[value for value, _ in found],
                y=[100 * attainment for _, attainment in found],
                mode="lines+markers",
                line={"color": mark.tone.line, "width": 3.2 if mark.ours else 1.2, "dash": "solid" if mark.ours else "dot"},
                marker={"symbol": mark.symbol, "size": 11 if mark.ours else 9, "color": mark.tone.line},
                hovertemplate=f"<b>{law}</b><br>%{{y:.2f}} % at %{{x:g}}<extra></extra>",
            )
        )
    figure.update_xaxes(tickvals=sorted(steps.values()))
    figure.update_yaxes(range=[-2, 103])
    figure.add_hline(y=100 * target, line={"color": GREEN.line, "width": 1.3, "dash": "dash"})
    return figure
