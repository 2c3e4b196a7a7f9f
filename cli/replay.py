"""`raylane replay`: feeds a recorded decision log to the scheduler of this version and compares every decision."""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from cli.console import console, fail
from deployments.scheduling.replay import ReplayError, replay


def replay_log(
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="Files of one decision log (gateway.decision_log), oldest first.")],
    any_code: Annotated[bool, typer.Option("--any-code", help="Also where other code recorded it: shows what a change decides differently.")] = False,
) -> None:
    """Replay a decision log: 0 if every decision is the recorded one, 1 at the first that is not, 2 if it is no log."""
    try:
        found = replay(_lines(files), any_code)
    except ReplayError as error:
        fail(str(error), code=2)
    except OSError as error:
        fail(f"{error.filename}: cannot be read: {error.strerror}", code=2)
    console.print(f"{found.inputs} inputs, {found.placed} placements")
    if found.difference is not None:
        different = found.difference
        fail(f"line {different.line}, {different.method}: recorded {different.recorded}, decided now {different.replayed}")
    console.print("[green]every decision is the recorded one[/]")


def _lines(files: list[Path]) -> Iterator[str]:
    for file in files:
        with file.open(encoding="utf-8") as lines:
            yield from lines
