"""The page of a proposal. Its style, script and colours are those of the simulator's report."""

from dataclasses import dataclass
from pathlib import Path

from planning.simulator.report.facts import Basis
from planning.simulator.report.limits import NOT_MODELLED, basis_line
from planning.simulator.report.page import in_script, laid_out
from planning.simulator.report.panel import clock_for
from planning.tune.advice import Advice
from planning.tune.case import Load
from planning.tune.report import words
from planning.tune.report.day_panel import day_panel
from planning.tune.report.front_panel import front_panel

_TEMPLATE = Path(__file__).with_name("page.html")


@dataclass(frozen=True, slots=True)
class Facts:
    """What a page says besides the proposal: what was tuned on what, by which command, and when (UTC). `diff`: of the spec."""

    spec: str
    trace: str
    requests: int
    basis: Basis
    diff: str
    version: str
    command: str
    made: str


def render(advice: Advice, load: Load, facts: Facts) -> str:
    """The whole file."""
    clock = clock_for(advice.span_s)
    return laid_out(
        _TEMPLATE,
        advice=advice,
        facts=facts,
        headline=words.headline(advice),
        mark=words.mark(advice),
        cards=words.cards(advice),
        columns=words.columns(advice),
        rows=words.rows(advice),
        notes=words.notes(advice),
        basis_line=basis_line(facts.basis),
        panels=[(panel, in_script(panel.as_json()), axis) for panel, axis in ((front_panel(advice), "own"), (day_panel(advice, load), "time"))],
        clock=clock,
        not_modelled=NOT_MODELLED,
    )
