"""The terminal: one console for what people read, and the way a command ends with an error."""

from typing import NoReturn

import typer
from rich.console import Console, RenderableType
from rich.markup import escape

console = Console(highlight=False, soft_wrap=True)
errors = Console(stderr=True, highlight=False, soft_wrap=True)
live = Console(highlight=False)
"""For what is drawn again and again: it breaks long lines between words, where the others leave that to the terminal."""


def show(view: RenderableType) -> None:
    """Prints tables and lines. On a terminal long lines are broken between words; in a file each stays one line, to be searched."""
    console.print(view, soft_wrap=not console.is_terminal)


def fail(message: str, mend: str | None = None, code: int = 1) -> NoReturn:
    """Prints what is wrong, and the command that mends it, and ends the command."""
    complain(message, mend)
    raise typer.Exit(code)


def complain(message: str, mend: str | None = None) -> None:
    """Prints what is wrong, and the command that mends it."""
    errors.print(f"[bold red]error:[/] {escape(message)}")
    if mend is not None:
        errors.print(f"  to mend it: [bold]{escape(mend)}[/]")
