"""The colours, panels and empty figures that all reports share.

Colours come in pairs, for a light and for a dark page. The colour-blind can tell them apart; lines have a contrast of
3 to 1 and more. Figures are made in the light ones; the page's script swaps them by the table that `swaps` gives.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import plotly.graph_objects as go
from plotly.basedatatypes import BaseTraceType
from plotly.subplots import make_subplots

from planning.simulator.bins import Column


@dataclass(frozen=True, slots=True)
class Tone:
    """One colour, on a light page (`line`: for lines and markers) and on a dark one, as #rrggbb."""

    line: str
    dark: str

    @property
    def faint(self) -> str:
        """For areas."""
        return _faint(self.line)


BLUE = Tone("#0067a5", "#58b4f0")
ORANGE = Tone("#b26a00", "#f2ae3d")
GREEN = Tone("#00795a", "#38c79b")
PURPLE = Tone("#9a3f78", "#dd8fbd")
SLATE = Tone("#55606e", "#a3b0bf")
RED = Tone("#c23b12", "#ff8a5c")
INK = Tone("#1c2126", "#e8ebee")
GRID = Tone("#dfe3e7", "#343b43")

LANES = (BLUE, ORANGE, GREEN, PURPLE, SLATE)
DASHES = ("solid", "dash", "dot", "dashdot", "longdash")
_ALL = (*LANES, RED, INK, GRID)


def lane_tone(number: int) -> Tone:
    """The colour of the lane of that number, the same in every figure."""
    return LANES[number % len(LANES)]


def swaps() -> dict[str, str]:
    """From each colour of a light page to that of a dark one."""
    return {tone.line: tone.dark for tone in _ALL} | {tone.faint: _faint(tone.dark) for tone in _ALL}


def _faint(color: str) -> str:
    red, green, blue = (int(color[at : at + 2], 16) for at in (1, 3, 5))
    return f"rgba({red},{green},{blue},0.25)"


_PAGE = {
    "paper_bgcolor": "rgba(0,0,0,0)",
    "plot_bgcolor": "rgba(0,0,0,0)",
    "font": {"family": "system-ui, sans-serif", "size": 12, "color": INK.line},
    "template": "none",
}
"""The page shows through."""
_TITLE_PX, _LEGEND_PX, _BOTTOM_PX = 24, 40, 44
_GAP_PX = 38


@dataclass(frozen=True, slots=True)
class TimeAxis:
    """The unit of the time axes: the same in all panels, so that they zoom together."""

    name: str
    seconds: float

    def __call__(self, times_s: Column) -> Column:
        """Times in this unit."""
        return times_s / self.seconds


@dataclass(frozen=True, slots=True)
class Panel:
    """`key` names it within the page; `height_px` is that of the figure."""

    key: str
    title: str
    caption: str
    figure: go.Figure
    height_px: int

    def as_json(self) -> str:
        """The figure, for the page's script."""
        return str(self.figure.to_json())


def clock_for(length_s: float) -> TimeAxis:
    """Seconds for a run of minutes, minutes for one of hours, hours and days for longer ones."""
    if length_s <= 300:
        return TimeAxis("seconds", 1.0)
    if length_s <= 4 * 3600:
        return TimeAxis("minutes", 60.0)
    return TimeAxis("hours", 3600.0) if length_s <= 4 * 86_400 else TimeAxis("days", 86_400.0)


def rows_figure(titles: Sequence[str], heights_px: Sequence[int], legend: bool = True) -> tuple[go.Figure, int]:
    """An empty figure of rows that share their horizontal axis, with a legend above them, and its height. Each row's
    title says what is drawn, and in which unit."""
    top_px = _LEGEND_PX + _TITLE_PX if legend else _TITLE_PX
    inner = sum(heights_px) + _GAP_PX * (len(heights_px) - 1)
    figure = make_subplots(
        rows=len(titles),
        cols=1,
        shared_xaxes=True,
        subplot_titles=[f"<b>{title}</b>" for title in titles],
        row_heights=list(heights_px),
        vertical_spacing=_GAP_PX / inner if len(titles) > 1 else 0,
    )
    height_px = inner + top_px + _BOTTOM_PX
    figure.update_layout(
        height=height_px,
        margin={"l": 56, "r": 14, "t": top_px, "b": _BOTTOM_PX},
        hovermode="x unified",
        hoversubplots="axis",
        hoverlabel={"font": {"size": 12}},
        legend={
            "orientation": "h",
            "x": 0,
            "xanchor": "left",
            "y": 1 + 26 / inner,
            "yanchor": "bottom",
            "font": {"size": 12},
            "traceorder": "normal",
        },
        **_PAGE,
    )
    figure.update_annotations(x=0, xanchor="left", font={"size": 12, "color": INK.line})
    figure.update_xaxes(gridcolor=GRID.line, zeroline=False, hoverformat=".2f", ticks="outside", tickcolor=GRID.line)
    figure.update_yaxes(
        gridcolor=GRID.line, zeroline=False, rangemode="tozero", fixedrange=True, nticks=5, automargin=False
    )
    return figure, height_px


def draw(figure: go.Figure, row: int, *traces: BaseTraceType) -> None:
    """Adds traces to a row."""
    for trace in traces:
        figure.add_trace(trace, row=row, col=1)


def name_axis(figure: go.Figure, title: str, rows: int) -> None:
    """The horizontal axis of a figure of so many rows."""
    figure.update_xaxes(title={"text": title, "standoff": 4}, row=rows, col=1)


def time_figure(
    titles: Sequence[str], heights_px: Sequence[int], clock: TimeAxis, length_s: float, legend: bool = True
) -> tuple[go.Figure, int]:
    """`rows_figure` over the time of a run."""
    figure, height_px = rows_figure(titles, heights_px, legend)
    figure.update_xaxes(range=[0, length_s / clock.seconds])
    name_axis(figure, f"{clock.name} since the start of the run", len(titles))
    return figure, height_px


@dataclass(frozen=True, slots=True)
class Look:
    """How a line is drawn. `points`: gaps are to be expected; `area`: filled down to 0; `named`: it stands in the
    legend."""

    dash: str = "solid"
    width: float = 1.8
    points: bool = False
    area: bool = False
    named: bool = True


_PLAIN = Look()


def line_of(name: str, x: Column, y: Column, tone: Tone, form: str, look: Look = _PLAIN) -> go.Scatter:
    """A line; `form` is d3's format of its values, with their unit after a space. Lines of one name are one entry of
    the legend."""
    number, _, unit = form.partition(" ")
    return go.Scatter(
        name=name,
        x=x,
        y=y,
        mode="lines+markers" if look.points else "lines",
        marker={"size": 3, "color": tone.line},
        line={"color": tone.line, "width": look.width, "dash": look.dash},
        fill="tozeroy" if look.area else None,
        fillcolor=tone.faint,
        hovertemplate=f"%{{y:{number}}} {unit}",
        legendgroup=name,
        showlegend=look.named,
    )


def mark_level(figure: go.Figure, row: int, y: float, text: str, tone: Tone = RED, log: bool = False) -> None:
    """A dashed level across a row, with its name at the right end. `log`: the row's axis is, where a note's place is a
    power of ten."""
    figure.add_hline(
        y=y,
        row=row,
        col=1,
        line={"color": tone.line, "width": 1.4, "dash": "dash"},
        annotation={
            "text": text,
            "font": {"color": tone.line, "size": 11},
            "xanchor": "right",
            "yanchor": "bottom",
            "showarrow": False,
        },
        annotation_position="top right",
    )
    if log:
        figure.layout.annotations[-1].y = math.log10(y)


HEIGHT_PX = 360


def empty_figure(x: str, y: str) -> go.Figure:
    """With the titles of its axes; the legend is the page's."""
    figure = go.Figure()
    figure.update_layout(
        margin={"l": 62, "r": 12, "t": 10, "b": 46},
        showlegend=False,
        hovermode="closest",
        hoverlabel={"align": "left"},
        **_PAGE,
        height=HEIGHT_PX,
    )
    figure.update_xaxes(
        title={"text": x, "standoff": 6}, gridcolor=GRID.line, zeroline=False, ticks="outside", tickcolor=GRID.line
    )
    figure.update_yaxes(title={"text": y, "standoff": 8}, gridcolor=GRID.line, zeroline=False)
    return figure
