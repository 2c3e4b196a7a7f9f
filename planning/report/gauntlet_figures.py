"""The figures of the gauntlet's page: each scenario's frontiers, the regrets, and sweeps. A policy has the same colour
and sign in all of them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import plotly.graph_objects as go

from planning.gauntlet.frontier import floor_of
from planning.gauntlet.results import Point, PolicyResult, Results, ScenarioResult
from planning.gauntlet.verdict import Regret, cliffs, interval
from planning.report.figures import BLUE, GREEN, HEIGHT_PX, INK, ORANGE, PURPLE, RED, SLATE, Tone, empty_figure
from planning.report.words import attained

_TONES = (ORANGE, PURPLE, GREEN, SLATE, RED)
_SIGNS = (
    ("square", "■"),
    ("diamond", "◆"),
    ("triangle-up", "▲"),
    ("triangle-down", "▼"),
    ("pentagon", "⬟"),
    ("hexagram", "✶"),
    ("cross", "✚"),
)


@dataclass(frozen=True, slots=True)
class Mark:
    """`symbol` is plotly's, `glyph` the same for text."""

    name: str
    tone: Tone
    symbol: str
    glyph: str
    ours: bool = False


ORACLE = Mark("oracle", INK, "star", "★")
KNOWN_RATE = Mark("known-rate baseline", INK, "asterisk-open", "✳")


def marks_of(policies: Sequence[str], ours: str) -> dict[str, Mark]:
    """By policy, in their order."""
    marks = {ours: Mark(ours, BLUE, "circle", "●", ours=True)} if ours in policies else {}
    for number, policy in enumerate(policy for policy in policies if policy != ours):
        symbol, glyph = _SIGNS[number % len(_SIGNS)]
        marks[policy] = Mark(policy, _TONES[number % len(_TONES)], symbol, glyph)
    return marks


def frontier_figure(contest: ScenarioResult, marks: dict[str, Mark]) -> go.Figure:
    """Up and to the left is better. Points far below the SLO lie outside."""
    figure = empty_figure("replica-hours", "first tokens in time, %")
    for contender in contest.contenders:
        if not marks[contender.policy].ours:
            figure.add_trace(_line(contender, marks[contender.policy]))
    for contender in contest.contenders:
        if marks[contender.policy].ours:
            figure.add_trace(_line(contender, marks[contender.policy]))
    known = float(np.mean([one.attainment for one in contest.known_rate]))
    figure.add_trace(_limit(KNOWN_RATE, float(contest.known_hours.mean()), known))
    oracle = float(np.mean([one.attainment for one in contest.oracle]))
    figure.add_trace(_limit(ORACLE, float(contest.oracle_hours.mean()), oracle))
    minimum = 100 * floor_of(contest.target)
    figure.update_yaxes(range=[minimum - 0.04 * (100 - minimum), 100 + 0.06 * (100 - minimum)])
    figure.update_xaxes(range=_hours_shown(contest))
    figure.add_hline(y=100 * contest.target, line={"color": GREEN.line, "width": 1.3, "dash": "dash"})
    figure.update_layout(height=HEIGHT_PX)
    return figure


def _line(contender: PolicyResult, mark: Mark) -> go.Scatter:
    points = contender.points
    size = [(11 if mark.ours else 9) + (4 if index == contender.pick else 0) for index in range(len(points))]
    return go.Scatter(
        name=mark.name,
        x=[point.mean_hours for point in points],
        y=[100 * point.attainment for point in points],
        error_y={
            "type": "data",
            "array": [_spread(point) for point in points],
            "color": mark.tone.line,
            "thickness": 1,
            "width": 2,
        },
        mode="lines+markers",
        line={"color": mark.tone.line, "width": 3.2 if mark.ours else 1.1, "dash": "solid" if mark.ours else "dot"},
        marker={
            "symbol": mark.symbol,
            "size": size,
            "color": mark.tone.line,
            "line": {
                "color": INK.line,
                "width": [1.5 if index == contender.pick else 0 for index in range(len(points))],
            },
        },
        text=[_reported(contender, index) for index in range(len(points))],
        hovertemplate="%{text}<br>%{y:.2f} % in %{x:.3f} h<extra></extra>",
    )


def _limit(mark: Mark, hours: float, attainment: float) -> go.Scatter:
    return go.Scatter(
        name=mark.name,
        x=[hours],
        y=[100 * attainment],
        mode="markers",
        marker={
            "symbol": mark.symbol,
            "size": 14,
            "color": mark.tone.line,
            "line": {"color": mark.tone.line, "width": 1.6},
        },
        hovertemplate=f"{mark.name}<br>%{{y:.2f}} % in %{{x:.3f}} h<extra></extra>",
    )


def _spread(point: Point) -> float | None:
    """Half the interval, in percent; that of two runs would fill the figure and tell nothing."""
    return 100 * interval(point.attainments).half if len(point.scores) > 2 else None


def _reported(contender: PolicyResult, index: int) -> str:
    settings = contender.points[index].settings
    reported = "<br>".join(
        f"{name} {value:g}" if isinstance(value, float) else f"{name} {value}" for name, value in settings.items()
    )
    return f"<b>{contender.policy}</b>{' (picked)' if index == contender.pick else ''}<br>{reported or 'its defaults'}"


def _hours_shown(contest: ScenarioResult) -> list[float]:
    """From the oracle to the dearest point that is worth showing."""
    floor = floor_of(contest.target)
    shown = [point.mean_hours for one in contest.contenders for point in one.points if point.attainment >= floor]
    hours = [float(contest.oracle_hours.mean()), float(contest.known_hours.mean()), *shown]
    room = 0.06 * (max(hours) - min(hours)) + 1e-3
    return [min(hours) - room, max(hours) + room]


_ROW_PX, _AROUND_PX = 34, 90


def regret_figure(regrets: Sequence[Regret], ours: str) -> go.Figure:
    """A bar a policy, the cheapest on top; a policy under the SLO is cheap for that reason, so its attainment stands at
    the bar."""
    figure = empty_figure("replica-hours", "")
    ordered = sorted(regrets, key=lambda one: -one.hours)
    names = [f"<b>{one.policy}</b>" if one.policy == ours else one.policy for one in ordered]
    parts = (
        ("the oracle's", SLATE, [one.oracle for one in ordered]),
        ("for not knowing the arrivals", ORANGE, [one.unavoidable for one in ordered]),
        ("the policy's own", BLUE, [one.ours for one in ordered]),
    )
    for name, tone, hours in parts:
        bar = go.Bar(
            name=name,
            y=names,
            x=hours,
            orientation="h",
            marker={"color": tone.line},
            hovertemplate=f"{name}: %{{x:.2f}} h<extra></extra>",
        )
        figure.add_trace(bar)
    maximum = max((one.hours for one in ordered), default=1.0)
    for name, one in zip(names, ordered, strict=True):
        text = f"{attained(one.attainment)}, {one.hours:.2f} h"
        figure.add_annotation(
            x=max(one.hours, one.oracle + one.unavoidable), y=name, text=text, showarrow=False, xanchor="left", xshift=6
        )
    figure.update_layout(
        barmode="relative",
        height=_ROW_PX * len(ordered) + _AROUND_PX,
        showlegend=True,
        legend={"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom", "traceorder": "normal"},
        margin={"l": 110, "r": 12, "t": 34, "b": 46},
    )
    figure.update_xaxes(range=[0, 1.3 * maximum])
    return figure


def sweep_figure(
    results: Results, steps: Mapping[str, float], what: str, target: float, marks: Mapping[str, Mark]
) -> go.Figure:
    """A line a policy."""
    figure = empty_figure(what, "first tokens in time, %")
    for policy, mark in sorted(marks.items(), key=lambda one: one[1].ours):
        found, _ = cliffs(results, steps, policy)
        figure.add_trace(
            go.Scatter(
                name=policy,
                x=[value for value, _ in found],
                y=[100 * attainment for _, attainment in found],
                mode="lines+markers",
                line={
                    "color": mark.tone.line,
                    "width": 3.2 if mark.ours else 1.2,
                    "dash": "solid" if mark.ours else "dot",
                },
                marker={"symbol": mark.symbol, "size": 11 if mark.ours else 9, "color": mark.tone.line},
                hovertemplate=f"<b>{policy}</b><br>%{{y:.2f}} % at %{{x:g}}<extra></extra>",
            )
        )
    figure.update_xaxes(tickvals=sorted(steps.values()))
    figure.update_yaxes(range=[-2, 103])
    figure.add_hline(y=100 * target, line={"color": GREEN.line, "width": 1.3, "dash": "dash"})
    return figure
