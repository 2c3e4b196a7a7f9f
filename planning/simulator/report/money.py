"""The panel of what it took: GPU-hours, dollars, and what a million output tokens cost."""

import numpy as np

from planning.simulator.bins import Column
from planning.simulator.report.facts import Price
from planning.simulator.report.palette import BLUE, GREEN
from planning.simulator.report.panel import Clock, Look, Panel, line_of, rows_figure
from planning.simulator.timeline import Timeline

_WINDOW = 15
"""Bins over which the price of tokens is taken."""


def money_panel(line: Timeline, price: Price, clock: Clock) -> Panel:
    """(f) What did the run take, and when was capacity paid for and not used?"""
    usd = price.usd_per_hour
    hours = line.cell.replica_hours * price.per_replica
    spent = hours if usd is None else hours * usd
    unit = f"{price.hours} per million output tokens" if usd is None else "US dollars per million output tokens"
    rows = [f"{price.hours} so far", *([] if usd is None else ["US dollars so far"]), f"{unit}, over {_WINDOW * line.bins.width_s:g} s"]
    figure, height_px = rows_figure(rows, [100] * len(rows), clock, line.length_s, legend=False)
    x = clock(line.bins.middles_s)
    figure.add_trace(line_of(price.hours, x, hours, BLUE, f".4s {price.hours}", Look(named=False)), row=1, col=1)
    if usd is not None:
        figure.add_trace(line_of("cost", x, spent, GREEN, "$,.2f so far", Look(named=False)), row=2, col=1)
    per_million = 1e6 * _per_token(spent, line.cell.output_tokens)
    figure.add_trace(line_of("per million output tokens", x, per_million, GREEN, ".4s per million", Look(named=False)), row=len(rows), col=1)
    known = per_million[~np.isnan(per_million)]
    if len(known):
        figure.update_yaxes(range=[0, 1.1 * float(np.quantile(known, 0.97))], row=len(rows), col=1)
    caption = (
        f"Every replica is paid for in any state, {price.per_replica} {price.unit}{'s' if price.per_replica > 1 else ''} each. "
        "Where tokens become dear, capacity stands idle; where they are cheapest, it is used to the full (the queue shows what that cost in waiting)."
    )
    return Panel("cost", price.hours + (" and cost" if usd is not None else ""), caption, figure, height_px)


def _per_token(spent: Column, tokens: Column) -> Column:
    """What was spent over a window by the tokens of that window; NaN where there are none."""
    so_far = np.concatenate(([0.0], spent))
    made = np.concatenate(([0.0], np.cumsum(tokens)))
    low = np.maximum(np.arange(len(spent)) - _WINDOW // 2, 0)
    high = np.minimum(low + _WINDOW, len(spent))
    with np.errstate(divide="ignore", invalid="ignore"):
        each: Column = np.where(made[high] - made[low] >= 1, (so_far[high] - so_far[low]) / (made[high] - made[low]), np.nan)
    return each
