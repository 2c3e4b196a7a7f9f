"""The panel of the day: how many replicas there would have been, and when promises would have been broken, before and after."""

import numpy as np

from planning.simulator.bins import Column
from planning.simulator.report.palette import GREEN, ORANGE, SLATE
from planning.simulator.report.panel import Look, Panel, clock_for, line_of, rows_figure
from planning.tune.advice import Advice, exact_of
from planning.tune.case import Load
from planning.tune.player import SLOT_S
from planning.tune.report.words import mark
from planning.tune.trial import Trial


def day_panel(advice: Advice, load: Load) -> Panel:
    """(b) When would which replicas have run, and what would have been missed?"""
    clock = clock_for(advice.span_s)
    titles = ["Replicas", "Requests that missed their SLO, per half-hour"]
    figure, height_px = rows_figure(titles, [230, 130], clock, advice.span_s)
    at_s = _middles(len(load.replicas), load.step_s)
    every = max(1, len(at_s) // 300)
    figure.add_trace(
        line_of("load, in replicas' worth", clock(at_s[::every]), load.replicas[::every], SLATE, ".2f", Look(width=0.6, area=True)), row=1, col=1
    )
    for name, trial, tone in (("the spec now", advice.before, ORANGE), (mark(advice), advice.chosen.trial, GREEN)):
        exact = exact_of(trial)
        middles = _middles(len(exact.replicas), exact.step_s)
        figure.add_trace(line_of(name, clock(middles), exact.replicas, tone, ".1f replicas"), row=1, col=1)
        missed = _missed(trial)
        slots = _middles(len(missed), SLOT_S)
        figure.add_trace(line_of(name, clock(slots), missed, tone, ",.0f missed", Look(points=True, named=False)), row=2, col=1)
    caption = (
        "Replicas that are paid for in any state, means of five minutes. The grey area is what arrived, in replicas' worth of work at full batches, "
        "also over five minutes: nothing runs on less, and bursts, starts of replicas and promises of a first token take more."
    )
    return Panel("day", "Replicas over the day, before and after", caption, figure, height_px)


def _missed(trial: Trial) -> Column:
    slots = exact_of(trial).slots.values()
    return np.asarray(np.sum([requests - kept for requests, kept in slots], axis=0))


def _middles(count: int, step_s: float) -> Column:
    return (np.arange(count, dtype=np.float64) + 0.5) * step_s
