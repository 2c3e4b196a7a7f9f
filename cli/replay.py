"""`raylane replay`: feeds recorded decision logs to the code of this version and compares every decision: a scheduler's
or an autoscaler's."""

from pathlib import Path
from typing import Annotated

import typer

from autoscaling.log import SCALING
from cli.console import console, fail
from deployments.decision_log import path_parts, read_log
from deployments.decisions import LogError, replay
from deployments.scheduling.recorder import SCHEDULING


def replay_log(
    files: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILE...",
            help="Files of decision logs (a gateway's or an autoscaler's), in any order.",
        ),
    ],
    any_code: Annotated[
        bool,
        typer.Option("--any-code", help="Accept logs recorded by other code: shows what a change decides differently."),
    ] = False,
) -> None:
    """Replay decision logs with this version; compare every decision.

    Exit codes: 0 all decisions are the same, 1 one differs, 2 a file is not a log.
    """
    logs = _logs(files)
    for log, parts in logs.items():
        reported = f"{log.name}: " if len(logs) > 1 else ""
        try:
            found = replay(read_log(parts), (SCHEDULING, SCALING), any_code)
        except LogError as error:
            fail(f"{log}: {error}", code=2)
        except OSError as error:
            fail(f"{error.filename}: cannot be read: {error.strerror}", code=2)
        console.print(f"{reported}{found.inputs} inputs, {found.counted} {found.counts}")
        if found.gaps:
            console.print(
                f"[yellow]{reported}inputs are missing in {found.gaps} place(s), where the log could not be written[/]"
            )
        if found.difference is not None:
            fail(f"{reported}{found.difference}")
    console.print("[green]every decision is the same as recorded[/]")


def _logs(files: list[Path]) -> dict[Path, list[Path]]:
    """The files of each log, oldest first, whatever order they were given in."""
    logs: dict[Path, list[Path]] = {}
    for file in sorted(dict.fromkeys(files), key=path_parts):
        logs.setdefault(file.with_name(path_parts(file)[0]), []).append(file)
    return logs
