"""`raylane replay`: feeds a recorded decision log to the code of this version and compares every decision: a scheduler's log, or an autoscaler's."""

from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Annotated

import typer

from autoscaling.log.files import is_scaling_log, lines_of
from autoscaling.log.reader import LogError
from autoscaling.log.replay import replay as replay_scaling
from cli.console import console, fail
from deployments.scheduling.replay import ReplayError, replay


def replay_log(
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="Files of one decision log (a gateway's or an autoscaler's), oldest first.")],
    any_code: Annotated[bool, typer.Option("--any-code", help="Also where other code recorded it: shows what a change decides differently.")] = False,
) -> None:
    """Replay a decision log: 0 if every decision is the recorded one, 1 at the first that is not, 2 if it is no log."""
    try:
        if is_scaling_log(next(iter(islice(_lines(files), 1)), "")):
            _replay_scaling(files, any_code)
        else:
            _replay_scheduling(files, any_code)
    except (ReplayError, LogError) as error:
        fail(str(error), code=2)
    except OSError as error:
        fail(f"{error.filename}: cannot be read: {error.strerror}", code=2)
    console.print("[green]every decision is the recorded one[/]")


def _replay_scheduling(files: list[Path], any_code: bool) -> None:
    found = replay(_lines(files), any_code)
    console.print(f"{found.inputs} inputs, {found.placed} placements")
    if found.difference is not None:
        different = found.difference
        fail(f"line {different.line}, {different.method}: recorded {different.recorded}, decided now {different.replayed}")


def _replay_scaling(files: list[Path], any_code: bool) -> None:
    found = replay_scaling(lines_of(files), any_code)
    console.print(f"{found.decisions} decisions, {found.changes} of them changed the number of replicas")
    if found.difference is not None:
        different = found.difference
        old, new = ((one.requested, one.reason, dict(one.terms)) for one in (different.recorded, different.replayed))
        fail(f"line {different.line}: recorded {old}, decided now {new}")


def _lines(files: list[Path]) -> Iterator[str]:
    for file in files:
        with file.open(encoding="utf-8") as lines:
            yield from lines
