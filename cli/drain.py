"""`raylane drain REPLICA`: a replica finishes what it has, takes nothing new, and is replaced."""

from typing import Annotated, Any

import typer
from rich.markup import escape

from cli.console import console, fail
from cli.order import Url, Why, order


def drain(
    name: Annotated[str, typer.Argument(help="The replica's id (with --node or --spot: its node's), or its beginning or end.")],
    node: Annotated[bool, typer.Option("--node", help="Drain all replicas of a node.")] = False,
    spot: Annotated[bool, typer.Option("--spot", help="The node is to be taken away: as --node, and the reason is a spot notice.")] = False,
    why: Why = "",
    url: Url = None,
) -> None:
    """Drain a replica: it finishes what it has, takes nothing new, and Serve starts another. For good: there is no undo."""
    body: dict[str, Any] = {"node" if node or spot else "replica": name, "why": why, "reason": "spot_notice" if spot else "operator"}
    answer = order(url, "/raylane/drain", body)
    for replica_id in answer["draining"]:
        console.print(f"{escape(replica_id)} drains; Serve starts another in its place.")
    if not answer["audited"]:
        console.print("[yellow]note[/]: the directory did not answer, so this is not in the audit.")
    if answer["failed"]:
        fail("; ".join(f"{replica_id}: {error}" for replica_id, error in answer["failed"].items()), mend="raylane status")
