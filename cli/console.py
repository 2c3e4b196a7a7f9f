"""The terminal: one console for what people read, the way a command ends with an error, and durations as people write
them."""

import json
import os
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated, Any, NoReturn

import rich.table
import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console, ConsoleDimensions, RenderableType
from rich.live import Live
from rich.markup import escape
from rich.progress import BarColumn, Progress, ProgressColumn, TextColumn

from deployments.cell.control import LONGEST_S, SHORTEST_S
from deployments.wire import to_plain


class _Console(Console):
    @property  # type: ignore[misc]
    def size(self) -> ConsoleDimensions:
        """A file has no width: each row of a table stays one line there, to be searched."""
        if self.is_terminal or self._width or "COLUMNS" in os.environ:
            return super().size
        return ConsoleDimensions(_FILE_COLUMNS, 25)


AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


class Table(rich.table.Table):
    """Cuts no value off: on a narrow terminal it goes on in the next line."""

    def add_column(self, *arguments: Any, **options: Any) -> None:
        super().add_column(*arguments, **{"overflow": "fold", **options})


_FILE_COLUMNS = 10_000
console = _Console(highlight=False, soft_wrap=True)
errors = _Console(stderr=True, highlight=False, soft_wrap=True)
live = Console(highlight=False)
"""For what is drawn again and again: it breaks long lines between words, where the others leave that to the
terminal."""


def show(view: RenderableType) -> None:
    """Prints tables and lines. On a terminal long lines are broken between words; in a file each stays one line, to be
    searched."""
    console.print(view, soft_wrap=not console.is_terminal)


def print_json(value: object) -> None:
    """For programs: plain values, or frozen dataclasses of them."""
    console.print_json(json.dumps(value, default=to_plain))


def follow(view: Callable[[], RenderableType], once: bool, every_s: float, screen: bool = False) -> None:
    """Shows what `view` returns, on a terminal again and again until Ctrl-C; `once`, or in a file, once."""
    if once or not console.is_terminal:
        show(view())
        return
    try:
        with Live(view(), console=live, auto_refresh=False, screen=screen) as shown:
            while True:
                time.sleep(every_s)
                shown.update(view(), refresh=True)
    except KeyboardInterrupt:
        return


@contextmanager
def progress_bar(text: str, total: float, *more: ProgressColumn) -> Iterator[Callable[[str, float], None]]:
    """A bar while something runs. Yields what is told what is being done, and how much of `total` is done."""
    with Progress(TextColumn("{task.description}"), BarColumn(), *more, console=console, transient=True) as progress:
        task = progress.add_task(text, total=total)
        yield lambda text, done: progress.update(task, description=text, completed=done)


def plain_table(*columns: str, left: int = 0, title: str | None = None) -> Table:
    """A table without edges, of narrow columns; the first `left` of them hold words, the others numbers."""
    table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    table.title, table.title_justify, table.title_style = title, "left", "bold"
    for number, column in enumerate(columns):
        table.add_column(column, justify="left" if number < left else "right")
    return table


def fail(message: str, hint: str | None = None, code: int = 1) -> NoReturn:
    """Prints what is wrong, and a command that may fix it, and ends the command with an exit code."""
    complain(message, hint)
    raise typer.Exit(code)


def complain(message: str, hint: str | None = None) -> None:
    """Prints what is wrong, and a command that may fix it."""
    errors.print(f"[bold red]error:[/] {escape(message)}")
    if hint is not None:
        errors.print(f"  hint: [bold]{escape(hint)}[/]")


_FORM = re.compile(r"(\d+(?:\.\d+)?)([smhd])")
_UNITS = {"s": 1.0, "m": 60.0, "h": 3_600.0, "d": 86_400.0}


def seconds_of(text: str, longest_s: float = LONGEST_S) -> float:
    """The seconds that a text says. Raises ValueError, which says what is allowed."""
    found = _FORM.fullmatch(text.strip())
    seconds = float(found[1]) * _UNITS[found[2]] if found else 0.0
    if not SHORTEST_S <= seconds <= longest_s:
        allowed = f"at least {SHORTEST_S:g}s, at most {longest_s / 86_400:g}d"
        raise ValueError(f"{text!r}: allowed: a number and its unit, as in 90s, 30m, 2h or 1d; {allowed}")
    return seconds


def shown_span(seconds: float) -> str:
    """A span in its largest whole unit but one: `1h 5m`, `42s`."""
    left = max(0, round(seconds))
    words: list[str] = []
    for unit in ("d", "h", "m", "s"):
        count, left = divmod(left, int(_UNITS[unit]))
        if count or (unit == "s" and not words):
            words.append(f"{count}{unit}")
    return " ".join(words[:2])
