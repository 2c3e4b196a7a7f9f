"""The report of `raylane tune`: one HTML file that stands alone, with the front, the proposal, and what it would have
done over the day."""

import math
from dataclasses import dataclass

import numpy as np
import plotly.graph_objects as go

from deployments.engine_model.cost_file import CostFile
from planning.report import tuning_text as words
from planning.report.facts import NOT_MODELLED, basis_line, change_rows
from planning.report.figures import (
    BLUE,
    GREEN,
    ORANGE,
    RED,
    SLATE,
    Look,
    Panel,
    Tone,
    clock_for,
    draw,
    line_of,
    mark_level,
    name_axis,
    rows_figure,
    time_figure,
)
from planning.report.layout import in_script, laid_out
from planning.report.tuning_text import mark
from planning.report.words import attained
from planning.simulator.bins import Column
from planning.tune.advice import Advice, exact_of
from planning.tune.case import LoadCurve
from planning.tune.trial import TuningTrial
from planning.tune.trial_runner import SLOT_S
from planning.unmodelled import Unmodelled
from planning.workload.changes import TraceChange

_ROW_PX = 330
_TICKS = (0.0, 0.5, 0.8, 0.9, 0.95, 0.98, 0.99, 0.995, 0.998, 0.999, 0.9995, 0.9998, 0.9999, 1.0)


def front_panel(advice: Advice) -> Panel:
    """(a) What does each share of met SLOs cost, and where do the spec and the proposal stand? A row a class."""
    names = sorted(advice.slos)
    rows = [name for name in names if name in advice.before.whole.classes]
    titles = [f"{name}: requests in time (SLO {100 * advice.slos[name]:g} %)" for name in rows]
    figure, height_px = rows_figure(titles, [_ROW_PX] * len(rows))
    for row, name in enumerate(rows, start=1):
        _draw(figure, advice, name, row)
    figure.update_layout(hovermode="closest")
    figure.update_xaxes(nticks=8)
    figure.update_yaxes(rangemode="normal")
    name_axis(figure, f"{advice.price.hours} a day", len(rows))
    caption = (
        "Every point is a simulation of all of the traffic. Up: more requests in time (the scale is that of what is "
        "missed, halved or so by each line); left: cheaper. The line joins what no other settings beat; hollow points "
        "miss an SLO."
    )
    return Panel("front", "What each share of met SLOs costs", caption, figure, height_px)


def _draw(figure: go.Figure, advice: Advice, name: str, row: int) -> None:
    finished = advice.finished
    levels = [_nines(trial, name) for trial in finished]
    others = [trial for trial in finished if trial is not advice.chosen.trial and trial is not advice.before]
    front = advice.front
    line = go.Scatter(
        name="not beaten by any",
        x=[advice.hours_a_day(trial) for trial in front],
        y=[_nines(trial, name) for trial in front],
        mode="lines",
        line={"color": BLUE.line, "width": 1.6, "shape": "hv"},
        hoverinfo="skip",
        showlegend=row == 1,
        legendgroup="front",
    )
    draw(figure, row, line)
    kept = [trial for trial in others if trial.whole.slack(advice.slos) >= 0]
    broke = [trial for trial in others if trial.whole.slack(advice.slos) < 0]
    for title, trials, tone, symbol, size in (
        ("meets all SLOs", kept, BLUE, "circle", 8),
        ("breaks one", broke, SLATE, "circle-open", 8),
        ("the spec now", [advice.before], ORANGE, "square", 13),
        (mark(advice), [advice.chosen.trial], GREEN, "diamond", 15),
    ):
        if trials:
            draw(figure, row, _points(title, trials, advice, name, (tone, symbol, size), row))
    slo = -math.log10(1 - advice.slos[name])
    mark_level(figure, row, slo, f"SLO {100 * advice.slos[name]:g} %", RED)
    low, high = min(*levels, slo), max(*levels, slo)
    known = [(tick, -math.log10(1 - tick)) for tick in _TICKS[:-1]]
    ticks = [(f"{100 * tick:g} %", level) for tick, level in known if low - 0.3 <= level <= high + 0.2]
    figure.update_yaxes(
        tickvals=[level for _, level in ticks],
        ticktext=[text for text, _ in ticks],
        range=[low - 0.15, high + 0.25],
        row=row,
        col=1,
    )


def _points(
    title: str, trials: list[TuningTrial], advice: Advice, name: str, look: tuple[Tone, str, int], row: int
) -> go.Scatter:
    tone, symbol, size = look
    return go.Scatter(
        name=title,
        x=[advice.hours_a_day(trial) for trial in trials],
        y=[_nines(trial, name) for trial in trials],
        mode="markers",
        marker={"color": tone.line, "symbol": symbol, "size": size, "line": {"width": 1.5, "color": tone.line}},
        customdata=[[_said(trial, advice, name)] for trial in trials],
        hovertemplate="%{customdata[0]}<extra></extra>",
        showlegend=row == 1,
        legendgroup=title,
    )


def _said(trial: TuningTrial, advice: Advice, name: str) -> str:
    usd = advice.usd_a_day(trial)
    cost = f"{advice.hours_a_day(trial):,.1f} {advice.price.hours} a day" + ("" if usd is None else f", ${usd:,.0f}")
    changed = (
        {}
        if trial.candidate is None or advice.before.candidate is None
        else trial.candidate.differs_from(advice.before.candidate)
    )
    lines = [f"<b>{trial.name}</b>: {attained(trial.whole.attained(name))} in time", cost]
    lines += [f"{key} {old} -> {new}" for key, (old, new) in changed.items()]
    return "<br>".join(lines)


def _nines(trial: TuningTrial, name: str) -> float:
    """-log10 of the share that was missed; where none was, of half a request."""
    requests, kept = trial.whole.classes[name]
    missed = max(requests - kept, 0.5) / max(requests, 0.5)
    return -math.log10(min(1.0, missed))


def day_panel(advice: Advice, load: LoadCurve) -> Panel:
    """(b) When would which replicas have run, and what would have been missed?"""
    clock = clock_for(advice.span_s)
    titles = ["Replicas", "Requests that missed their SLO, per half-hour"]
    figure, height_px = time_figure(titles, [230, 130], clock, advice.span_s)
    at_s = _middles(len(load.replicas), load.step_s)
    every = max(1, len(at_s) // 300)
    x, area = clock(at_s[::every]), Look(width=0.6, area=True)
    draw(figure, 1, line_of("load, in replicas' worth", x, load.replicas[::every], SLATE, ".2f", area))
    for name, trial, tone in (("the spec now", advice.before, ORANGE), (mark(advice), advice.chosen.trial, GREEN)):
        exact = exact_of(trial)
        middles = _middles(len(exact.replicas), exact.step_s)
        draw(figure, 1, line_of(name, clock(middles), exact.replicas, tone, ".1f replicas"))
        missed = _missed(trial)
        slots = _middles(len(missed), SLOT_S)
        look = Look(points=True, named=False)
        draw(figure, 2, line_of(name, clock(slots), missed, tone, ",.0f missed", look))
    caption = (
        "Replicas that are paid for in any state, means of five minutes. The grey area is what arrived, in replicas' "
        "worth of work at full batches, also over five minutes: nothing runs on less; bursts, starts of replicas and "
        "SLOs take more."
    )
    return Panel("day", "Replicas over the day, before and after", caption, figure, height_px)


def _missed(trial: TuningTrial) -> Column:
    slots = exact_of(trial).slots.values()
    return np.asarray(np.sum([requests - kept for requests, kept in slots], axis=0))


def _middles(count: int, step_s: float) -> Column:
    return (np.arange(count, dtype=np.float64) + 0.5) * step_s


@dataclass(frozen=True, slots=True)
class TuningFacts:
    """What a page says besides the proposal: what was tuned on what. `diff`: of the spec."""

    spec: str
    trace: str
    requests: int
    costs: str
    cost: CostFile
    diff: str
    changes: tuple[TraceChange, ...] = ()
    unmodelled: tuple[Unmodelled, ...] = ()


def render(advice: Advice, load: LoadCurve, facts: TuningFacts) -> str:
    """The whole file."""
    clock = clock_for(advice.span_s)
    return laid_out(
        "tuning.html",
        advice=advice,
        facts=facts,
        headline=words.headline(advice),
        mark=words.mark(advice),
        cards=words.cards(advice),
        columns=words.columns(advice),
        rows=words.rows(advice),
        notes=[*words.notes(advice), *words.gain_lines(advice), *filter(None, [words.check_line(advice)])],
        change_rows=change_rows(facts.changes),
        basis_line=basis_line(facts.cost),
        panels=[
            (panel, in_script(panel.as_json()), axis)
            for panel, axis in ((front_panel(advice), "own"), (day_panel(advice, load), "time"))
        ],
        clock=clock,
        not_modelled=NOT_MODELLED,
    )
