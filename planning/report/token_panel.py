"""The panel of a simulated run's tokens: the time between them, how often a class's target for it was met, and what of
the prompts prefix caches held."""

from collections.abc import Sequence

import numpy as np

from cluster.spec import TrafficClass
from planning.report.figures import (
    BLUE,
    GREEN,
    Look,
    Panel,
    TimeAxis,
    draw,
    lane_tone,
    line_of,
    mark_level,
    time_figure,
)
from planning.simulator.timeline import Timeline

_GAPS = Look(points=True)


def tokens_panel(line: Timeline, classes: Sequence[TrafficClass], clock: TimeAxis) -> Panel:
    """(h) Did answers flow, and did prefix caches help?"""
    aims = [one for one in classes if one.itl_ms is not None and one.name in line.itl_in_time]
    hits = line.cell.prefix_hits
    found = "" if np.nan_to_num(hits).any() else ": none"
    titles = [
        "Time between tokens, ms",
        *(["Answers within their class's itl_ms on average, %"] if aims else []),
        f"Prompt tokens found in a prefix cache, %{found}",
    ]
    figure, height_px = time_figure(titles, [140, *([100] if aims else []), 100], clock, line.length_s)
    x = clock(line.bins.middles_s)
    p50, p99 = (1e3 * column for column in (line.cell.itl_p50_s, line.cell.itl_p99_s))
    draw(figure, 1, line_of("p50", x, p50, BLUE, ".3s ms", Look(dash="dot", points=True)))
    draw(figure, 1, line_of("p99", x, p99, BLUE, ".3s ms", _GAPS))
    for number, one in enumerate(aims):
        mark_level(figure, 1, float(one.itl_ms or 0.0), f"{one.name} {one.itl_ms:g} ms")
        met = 100 * line.itl_in_time[one.name]
        draw(figure, 2, line_of(f"{one.name} met", x, met, lane_tone(number + 1), ".1f %", _GAPS))
    if aims:
        figure.update_yaxes(range=[0, 104], row=2, col=1)
    draw(figure, len(titles), line_of("prefix hits", x, 100 * hits, GREEN, ".1f %", _GAPS))
    figure.update_yaxes(range=[0, 104], row=len(titles), col=1)
    caption = (
        "Time between tokens: of all tokens after the first that came then, over all engines. A long p99 beside a "
        "short p50 are decodes that waited for a prompt in the same step."
        + (" An answer is within itl_ms where its mean time between tokens is." if aims else "")
        + " Prefix hits count where the first token came."
    )
    return Panel("tokens", "Time between tokens, and prefix hits", caption, figure, height_px)
