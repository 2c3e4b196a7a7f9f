"""`raylane replay`: feeds recorded decision logs to the code of this version and compares every decision: a scheduler's
or an autoscaler's."""

import re
from pathlib import Path
from typing import Annotated

import typer

from autoscaling.log.reader import LogError, all_lines_of, is_scaling_log, lines_of
from autoscaling.log.reader import replay as replay_scaling
from cli.console import console, fail
from deployments.scheduling.replay import ReplayError, replay

_FILE = re.compile(r"(?P<log>.*\.jsonl)(?:\.(?P<age>\d+))?")
"""A log's newest file, and those before it: the larger the number, the older."""
_BEGUN = ".jsonl.new"
"""How the name of a file ends that is being opened, or whose writer was killed while it opened it: nothing is in it
yet."""


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
    logs = _logs([file for file in files if not _only_begun(file)])
    if not logs:
        fail("nothing to replay: no file holds decisions", code=2)
    for log, parts in logs.items():
        reported = f"{log.name}: " if len(logs) > 1 else ""
        try:
            first = next(all_lines_of(parts), None)
            if first is None:
                fail(f"{log}: not a decision log: it is empty", code=2)
            if is_scaling_log(first):
                _replay_scaling(parts, any_code, reported)
            else:
                _replay_scheduling(parts, any_code, reported)
        except (ReplayError, LogError) as error:
            fail(f"{reported}{error}", code=2)
        except OSError as error:
            fail(f"{error.filename}: cannot be read: {error.strerror}", code=2)
        except RecursionError:  # of a scheduler's log; a scaling log's reader says which line
            fail(f"{log}: not a decision log: a line is nested too deeply", code=2)
    console.print("[green]every decision is the same as recorded[/]")


def _only_begun(file: Path) -> bool:
    """Whether no decision is in the file yet, which is told."""
    begun = file.name.endswith(_BEGUN) and file.is_file() and not file.stat().st_size
    if begun:
        console.print(f"[yellow]{file}: skipped: just opened, no decision is in it yet[/]")
    return begun


def _logs(files: list[Path]) -> dict[Path, list[Path]]:
    """The files of each log, oldest first, whatever order they were given in."""
    logs: dict[Path, list[tuple[int, Path]]] = {}
    for file in dict.fromkeys(files):
        found = _FILE.fullmatch(file.name)
        name, age = (file.name, 0) if found is None else (found["log"], int(found["age"] or 0))
        logs.setdefault(file.with_name(name), []).append((-age, file))
    return {log: [file for _, file in sorted(parts)] for log, parts in logs.items()}


def _replay_scheduling(files: list[Path], any_code: bool, reported: str) -> None:
    found = replay(all_lines_of(files), any_code)
    console.print(f"{reported}{found.inputs} inputs, {found.placed} placements")
    if found.gaps:
        console.print(
            f"[yellow]{reported}inputs are missing in {found.gaps} place(s), where the log could not be written[/]"
        )
    if found.difference is not None:
        different = found.difference
        fail(
            f"{reported}line {different.line}, {different.method}: recorded {different.recorded}, decided now "
            f"{different.replayed}"
        )


def _replay_scaling(files: list[Path], any_code: bool, reported: str) -> None:
    found = replay_scaling(lines_of(files), any_code)
    console.print(f"{reported}{found.decisions} decisions, {found.changes} changed the number of replicas")
    if found.difference is not None:
        different = found.difference
        old, new = (
            (one.requested, one.reason, one.concern, dict(one.terms))
            for one in (different.recorded, different.replayed)
        )
        fail(f"{reported}line {different.line}: recorded {old}, decided now {new}")
