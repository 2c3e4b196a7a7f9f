"""`raylane cordon REPLICA`: keeps new work off a replica, or no more."""

from typing import Annotated

import typer
from rich.markup import escape

from cli.console import console
from cli.order import Url, Why, order


def cordon(
    replica: Annotated[str, typer.Argument(help="The replica's id, or its beginning or end (`raylane status` shows them).")],
    undo: Annotated[bool, typer.Option("--undo", help="Lift the cordon.")] = False,
    why: Why = "",
    url: Url = None,
) -> None:
    """Keep new work off a replica; what it has goes on. Lasts until --undo, or the replica's end."""
    answer = order(url, "/raylane/cordon", {"replica": replica, "undo": undo, "why": why})
    name = escape(answer["replica"])
    if undo:
        console.print(f"{name} takes new work again.")
    else:
        console.print(f"{name} is cordoned: it finishes what it has. `raylane cordon {escape(replica)} --undo` lifts it.")
