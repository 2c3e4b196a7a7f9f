"""The page: panels, tables and words laid out in one HTML file that loads nothing, from nowhere.

`page.html`, `page.css` and `page.js` stand beside this file. The page's own content security policy forbids it any connection. What other reports
(`planning/tune/report`) share with this one is public here.
"""

from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup
from plotly.offline import get_plotlyjs

from planning.simulator.report import palette, tables
from planning.simulator.report.capacity import capacity_panel
from planning.simulator.report.events import events_panel
from planning.simulator.report.facts import Facts
from planning.simulator.report.latency import latency_panel
from planning.simulator.report.limits import NOT_MODELLED, basis_line
from planning.simulator.report.money import money_panel
from planning.simulator.report.panel import Panel, clock_for
from planning.simulator.report.queues import queue_panel
from planning.simulator.report.run import Run
from planning.simulator.report.service import service_panel
from planning.simulator.report.verdict import verdict

_FOLDER = Path(__file__).parent


def panels(run: Run, facts: Facts) -> tuple[Panel, ...]:
    """The figures, in the order in which they are asked for."""
    line, clock = run.line, clock_for(run.line.length_s)
    present = {share.name for share in run.classes}
    return (
        latency_panel(line, [target for target in facts.targets if target.name in present], clock),
        queue_panel(line, clock),
        service_panel(line, clock),
        capacity_panel(line, facts, clock),
        money_panel(line, facts.price, clock),
        events_panel(line, run.decided, clock),
    )


def render(run: Run, facts: Facts) -> str:
    """The whole file."""
    clock = clock_for(run.line.length_s)
    return laid_out(
        _FOLDER / "page.html",
        facts=facts,
        run=run,
        verdict=verdict(run, facts),
        basis_line=basis_line(facts.basis),
        cards=tables.cards(run, facts),
        lane_columns=tables.LANE_COLUMNS,
        lane_rows=tables.lane_rows(run),
        worst_columns=tables.WORST_COLUMNS,
        worst_rows=tables.worst_rows(run.worst),
        slice_s=run.minutes.bins.width_s,
        panels=[(panel, in_script(panel.as_json())) for panel in panels(run, facts)],
        clock=clock,
        not_modelled=NOT_MODELLED,
    )


def laid_out(template: Path, **values: object) -> str:
    """A page by its template, which extends `base.html`, with the style, the script and the colours of all reports."""
    pages = Environment(
        loader=FileSystemLoader([template.parent, _FOLDER]), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    return pages.get_template(template.name).render(
        swaps=palette.swaps(),
        tones={name: getattr(palette, name) for name in ("INK", "GRID", "RED", "GREEN", "BLUE", "ORANGE")},
        style=Markup((_FOLDER / "page.css").read_text(encoding="utf-8")),
        script=Markup((_FOLDER / "page.js").read_text(encoding="utf-8")),
        plotly=Markup(get_plotlyjs()),
        **values,
    )


def in_script(json: str) -> Markup:
    """JSON that may stand inside a script element, whatever names it holds."""
    return Markup(json.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026"))
