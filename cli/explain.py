"""`raylane explain [MODEL]`: why there are so many replicas: each decision with its inputs, its reason, and what would have changed it."""

import json
import time
from collections import deque
from datetime import datetime
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from autoscaling.explain.explanation import explain as explained
from autoscaling.explain.moments import Moment, moments
from autoscaling.log.files import lines_of
from autoscaling.log.reader import LogError
from cli.console import console, fail
from cli.duration import seconds_of
from cli.scaling_logs import chosen_logs


def explain(
    model: Annotated[str | None, typer.Argument(help="The model; without it, the one that there is.")] = None,
    last: Annotated[int, typer.Option(min=1, help="So many of the last decisions.")] = 3,
    at: Annotated[str | None, typer.Option(help="Instead, the last one up to a time: 2026-11-21T12:03, 12:03:04 (today), or 10m (ago).")] = None,
    reasons: Annotated[bool, typer.Option("--reasons", help="Also those that changed the reason alone.")] = False,
    log: Annotated[list[Path] | None, typer.Option(help="Files of a scaling log, oldest first; without them, those of the cluster here.")] = None,
    any_code: Annotated[bool, typer.Option("--any-code", help="Also where other code recorded it; it may have decided otherwise.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Explain an autoscaler's decisions: inputs, reason, and the smallest change of each input that would have given another number."""
    until_unix_s = None if at is None else _time(at)
    found: deque[Moment] = deque(maxlen=1 if at is not None else last)
    try:
        for moment in moments(lines_of(chosen_logs(model, log or [])), any_code):
            if until_unix_s is not None and moment.record.signals.unix_s > until_unix_s:
                break
            if moment.decision.changes or reasons or at is not None:
                found.append(moment)
    except LogError as error:
        fail(str(error), mend="--any-code" if "recorded by code" in str(error) else None, code=2)
    except OSError as error:
        fail(f"{error.filename}: cannot be read: {error.strerror}", code=2)
    told = [explained(moment) for moment in found]
    if as_json:
        console.print_json(json.dumps([one.as_json() for one in told]))
        return
    if not told:
        console.print("No decision changed the number of replicas." + ("" if reasons else " `--reasons` shows those that changed the reason."))
    for one in told:
        head, *rest = one.lines()
        console.print(f"[bold]{escape(head)}[/]")
        console.print(escape("\n".join(rest)) + "\n", highlight=False)


def _time(text: str) -> float:
    """The time of day that is meant, as a Unix time."""
    for form in ("%Y-%m-%dT%H:%M:%S", "%Y-%m-%dT%H:%M", "%H:%M:%S", "%H:%M"):
        try:
            read = datetime.strptime(text, form)
        except ValueError:
            continue
        today = datetime.now()
        try:
            return (read if "%Y" in form else read.replace(year=today.year, month=today.month, day=today.day)).timestamp()
        except (ValueError, OverflowError):  # a year that no clock of this machine has
            break
    try:
        return time.time() - seconds_of(text)
    except ValueError:
        fail(f"--at {text!r}: allowed: 2026-11-21T12:03[:04], 12:03[:04], or a span like 10m", code=2)
