"""Lays panels, tables and text out in one HTML file that loads nothing: the page's own content security policy forbids
any connection."""

import shlex
import sys
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup
from plotly.offline import get_plotlyjs

from deployments.scheduling.recorder import code_hash
from planning.report import figures

_FOLDER = Path(__file__).parent


def laid_out(template: str, **values: object) -> str:
    """A page by its template, a file beside this one that extends `base.html`, with the style, the script and the
    colours of all reports, and a footer that says how it was made."""
    pages = Environment(
        loader=FileSystemLoader(_FOLDER),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    pages.globals |= {
        "command": shlex.join(["raylane", *sys.argv[1:]]),
        "version": f"{version('raylane')}, scheduler {code_hash()}",
        "made": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
    }
    return pages.get_template(template).render(
        swaps=figures.swaps(),
        tones={name: getattr(figures, name) for name in ("INK", "GRID", "RED", "GREEN", "BLUE", "ORANGE")},
        style=Markup((_FOLDER / "base.css").read_text(encoding="utf-8")),
        script=Markup((_FOLDER / "base.js").read_text(encoding="utf-8")),
        plotly=Markup(get_plotlyjs()),
        **values,
    )


def in_script(json: str) -> Markup:
    """JSON that may stand inside a script element, whatever names it holds."""
    return Markup(json.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026"))
