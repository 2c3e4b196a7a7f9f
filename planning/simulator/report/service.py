"""The panel of arrivals against service: requests and tokens a second that came, and that were done."""

import numpy as np

from planning.simulator.report.palette import BLUE, SLATE
from planning.simulator.report.panel import Clock, Look, Panel, line_of, rows_figure
from planning.simulator.timeline import Timeline


def service_panel(line: Timeline, clock: Clock) -> Panel:
    """(d) Did more arrive than was served, and was it requests, prompts or answers?"""
    titles = ["Requests/s", "Prompt tokens/s", "Output tokens/s"]
    figure, height_px = rows_figure(titles, [140, 130, 130], clock, line.length_s)
    x, width, cell = clock(line.bins.middles_s), line.bins.width_s, line.cell
    arrived = np.sum([lane.arrived for lane in line.lanes], axis=0)
    for row, came, done in (
        (1, arrived, cell.finished),
        (2, cell.prompt_tokens_offered, cell.prompt_tokens),
        (3, cell.output_tokens_offered, cell.output_tokens),
    ):
        figure.add_trace(line_of("arrived", x, came / width, SLATE, ",.3s /s", Look(width=0.6, area=True, named=row == 1)), row=row, col=1)
        figure.add_trace(line_of("served", x, done / width, BLUE, ",.3s /s", Look(named=row == 1)), row=row, col=1)
    caption = (
        "Grey area: what arrived, by when its request arrived (output tokens: those that it would get); blue line: what was finished, prefilled "
        "and decoded then. A flat line below the top of the area is the cell at its limit."
    )
    return Panel("service", "Arrivals and service", caption, figure, height_px)
