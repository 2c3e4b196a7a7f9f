"""An empty figure in the page's manner."""

import plotly.graph_objects as go

from planning.simulator.report.palette import GRID, INK

HEIGHT_PX = 360


def empty_figure(x: str, y: str) -> go.Figure:
    """With the titles of its axes; the legend is the page's."""
    figure = go.Figure()
    figure.update_layout(
        margin={"l": 62, "r": 12, "t": 10, "b": 46},
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
        font={"family": "system-ui, sans-serif", "size": 12, "color": INK.line},
        showlegend=False,
        hovermode="closest",
        hoverlabel={"align": "left"},
        template="none",
        height=HEIGHT_PX,
    )
    figure.update_xaxes(title={"text": x, "standoff": 6}, gridcolor=GRID.line, zeroline=False, ticks="outside", tickcolor=GRID.line)
    figure.update_yaxes(title={"text": y, "standoff": 8}, gridcolor=GRID.line, zeroline=False)
    return figure
