"""The figure of one scenario: each law's frontier, attainment against replica-hours, with what knows the future beside it."""

import numpy as np
import plotly.graph_objects as go

from planning.gauntlet.frontier import floor_of
from planning.gauntlet.report.figure import HEIGHT_PX, empty_figure
from planning.gauntlet.report.marks import KNOWN_RATE, ORACLE, Mark
from planning.gauntlet.results import Contender, Contest, Point
from planning.gauntlet.verdict import interval
from planning.simulator.report.palette import GREEN, INK


def frontier_figure(contest: Contest, marks: dict[str, Mark]) -> go.Figure:
    """Up and to the left is better. Points far below the promise lie outside."""
    figure = empty_figure("replica-hours", "first tokens in time, %")
    for contender in contest.contenders:
        if not marks[contender.law].ours:
            figure.add_trace(_line(contender, marks[contender.law]))
    for contender in contest.contenders:
        if marks[contender.law].ours:
            figure.add_trace(_line(contender, marks[contender.law]))
    known = float(np.mean([one.attainment for one in contest.known_rate]))
    figure.add_trace(_limit(KNOWN_RATE, float(contest.known_hours.mean()), known))
    oracle = float(np.mean([one.attainment for one in contest.oracle]))
    figure.add_trace(_limit(ORACLE, float(contest.oracle_hours.mean()), oracle))
    least = 100 * floor_of(contest.target)
    figure.update_yaxes(range=[least - 0.04 * (100 - least), 100 + 0.06 * (100 - least)])
    figure.update_xaxes(range=_hours_shown(contest))
    figure.add_hline(y=100 * contest.target, line={"color": GREEN.line, "width": 1.3, "dash": "dash"})
    figure.update_layout(height=HEIGHT_PX)
    return figure


def _line(contender: Contender, mark: Mark) -> go.Scatter:
    points = contender.points
    size = [(11 if mark.ours else 9) + (4 if index == contender.pick else 0) for index in range(len(points))]
    return go.Scatter(
        name=mark.name,
        x=[point.mean_hours for point in points],
        y=[100 * point.attainment for point in points],
        error_y={"type": "data", "array": [_spread(point) for point in points], "color": mark.tone.line, "thickness": 1, "width": 2},
        mode="lines+markers",
        line={"color": mark.tone.line, "width": 3.2 if mark.ours else 1.1, "dash": "solid" if mark.ours else "dot"},
        marker={
            "symbol": mark.symbol,
            "size": size,
            "color": mark.tone.line,
            "line": {"color": INK.line, "width": [1.5 if index == contender.pick else 0 for index in range(len(points))]},
        },
        text=[_told(contender, index) for index in range(len(points))],
        hovertemplate="%{text}<br>%{y:.2f} % in %{x:.3f} h<extra></extra>",
    )


def _limit(mark: Mark, hours: float, attainment: float) -> go.Scatter:
    return go.Scatter(
        name=mark.name,
        x=[hours],
        y=[100 * attainment],
        mode="markers",
        marker={"symbol": mark.symbol, "size": 14, "color": mark.tone.line, "line": {"color": mark.tone.line, "width": 1.6}},
        hovertemplate=f"{mark.name}<br>%{{y:.2f}} % in %{{x:.3f}} h<extra></extra>",
    )


def _spread(point: Point) -> float | None:
    """Half the interval, in percent; that of two plays would fill the figure and tell nothing."""
    return 100 * interval(point.attainments).half if len(point.scores) > 2 else None


def _told(contender: Contender, index: int) -> str:
    settings = contender.points[index].settings
    told = "<br>".join(f"{name} {value:g}" if isinstance(value, float) else f"{name} {value}" for name, value in settings.items())
    return f"<b>{contender.law}</b>{' (picked)' if index == contender.pick else ''}<br>{told or 'its defaults'}"


def _hours_shown(contest: Contest) -> list[float]:
    """From the oracle to the dearest point that is worth showing."""
    floor = floor_of(contest.target)
    shown = [point.mean_hours for one in contest.contenders for point in one.points if point.attainment >= floor]
    hours = [float(contest.oracle_hours.mean()), float(contest.known_hours.mean()), *shown]
    room = 0.06 * (max(hours) - min(hours)) + 1e-3
    return [min(hours) - room, max(hours) + room]
