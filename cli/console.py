"""The terminal: one console for what people read, and the way a command ends with an error."""

from typing import NoReturn

import typer
from rich.console import Console
from rich.markup import escape

console = Console(highlight=False, soft_wrap=True)
errors = Console(stderr=True, highlight=False, soft_wrap=True)


def fail(message: str, mend: str | None = None, code: int = 1) -> NoReturn:
    """Prints what is wrong, and the command that mends it, and ends the command."""
    errors.print(f"[bold red]error:[/] {escape(message)}")
    if mend is not None:
        errors.print(f"  to mend it: [bold]{escape(mend)}[/]")
    raise typer.Exit(code)
