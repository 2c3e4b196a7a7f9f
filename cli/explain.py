"""`raylane explain [MODEL]`: why there are so many replicas: each decision with its inputs, its reason, and what would
have changed it; and which replicas and gateways ended meanwhile.
"""

import math
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape

from autoscaling.explain.explanation import explain as explained
from autoscaling.explain.moments import DecisionMoment, moments
from autoscaling.log import PREFIX, log_name
from cli.console import AsJson, console, fail, print_json, seconds_of
from cli.departed import clock, end_of, ids_in, sequel_of, short_names
from cli.run_dir import RunDir, known_clusters
from cluster.group_key import model_of
from deployments.cell.act import Act, ActKind, read_acts
from deployments.cell.departure import Departure
from deployments.cell.departure_history import departures_in
from deployments.cell.lifecycle_log import read_lives
from deployments.decision_log import log_files, model_in, path_parts, read_log
from deployments.decisions import LogError
from deployments.store import FILE_NAME


def explain(
    model: Annotated[str | None, typer.Argument(help="The model. Required if several scale.")] = None,
    last: Annotated[int, typer.Option(min=1, help="How many of the last decisions to explain.")] = 3,
    at: Annotated[
        str | None,
        typer.Option(help="Explain the last decision before a time: 2026-11-21T12:03, 12:03:04 (today), or 10m (ago)."),
    ] = None,
    reasons: Annotated[bool, typer.Option("--reasons", help="Include decisions that changed only the reason.")] = False,
    log: Annotated[
        list[Path] | None,
        typer.Option(help="Files of a scaling log, oldest first. Default: those of the cluster on this machine."),
    ] = None,
    any_code: Annotated[
        bool,
        typer.Option("--any-code", help="Accept a log recorded by other code, which may have decided differently."),
    ] = False,
    as_json: AsJson = False,
    ended: Annotated[
        bool,
        typer.Option("--ended", help="List the replicas and gateways that ended instead: when, why, what was lost."),
    ] = False,
    orders: Annotated[
        bool, typer.Option("--orders", help="List what operators ordered instead: who, when, what, why.")
    ] = False,
) -> None:
    """Explain scaling decisions: inputs, reason, and the smallest changes that would have changed the result."""
    until_unix_s = None if at is None else _time(at)
    if orders:
        _tell_orders(_acts(log_folder(log or []), model, until_unix_s or math.inf), as_json)
        return
    if ended:
        _tell_ended(_departures(log_folder(log or []), model, 0.0, until_unix_s or math.inf), as_json)
        return
    logs = chosen_logs(model, log or [])
    wanted, unchanged = (last, reasons) if at is None else (1, True)
    try:
        found = _last_moments(logs, wanted, unchanged, until_unix_s or math.inf, any_code)
    except LogError as error:
        fail(str(error), hint="--any-code" if "recorded by code" in str(error) else None, code=2)
    except OSError as error:
        fail(f"{error.filename}: cannot be read: {error.strerror}", code=2)
    reported = [explained(moment) for moment in found]
    if as_json:
        print_json([one.as_json() for one in reported])
        return
    if not reported:
        console.print(
            "No decision changed the number of replicas."
            + ("" if reasons else " `--reasons` shows those that changed only the reason.")
        )
    for one in reported:
        head, *rest = one.lines()
        console.print(f"[bold]{escape(head)}[/]")
        console.print(escape("\n".join(rest)) + "\n", highlight=False)
    if reported and at is None:
        meanwhile = _departures(logs[-1].parent, reported[0].model, reported[0].at_unix_s, math.inf)
        if meanwhile:
            console.print("[bold]Replicas and gateways that ended since the first of these:[/]")
            _tell_ended(meanwhile, as_json=False)


def _last_moments(
    logs: Sequence[Path], wanted: int, unchanged: bool, until_unix_s: float, any_code: bool
) -> list[DecisionMoment]:
    """The last before that time, with or without those that left the number `unchanged`. The newest file is read first:
    each begins with the whole state, and to decide all of them again takes minutes. Raises LogError, OSError."""
    found: list[DecisionMoment] = []
    for path in reversed(logs):
        last: deque[DecisionMoment] = deque(maxlen=wanted - len(found))
        for number, moment in enumerate(moments(read_log([path]), any_code)):
            if moment.record.signals.unix_s > until_unix_s:
                break
            if moment.decision.changes or (unchanged and (number or path == logs[0])):  # the first is new to its file
                last.append(moment)
        found = [*last, *found]
        if len(found) == wanted:
            break
    return found


def _departures(folder: Path, model: str | None, since_unix_s: float, until_unix_s: float) -> list[Departure]:
    """What ended in that time: the model's or group's replicas (without one, all), gateways, controllers and
    directories."""
    if not _store_of(folder).exists():
        return []
    found = departures_in(event for _, event in read_lives(_store_of(folder)))
    return [
        one
        for one in found
        if since_unix_s <= one.at_unix_s <= until_unix_s
        and (model in (None, one.model, model_of(one.model)) or not one.model)
    ]


def _acts(folder: Path, model: str | None, until_unix_s: float) -> list[Act]:
    """What operators ordered, oldest first."""
    return [
        act
        for act in read_acts(_store_of(folder))
        if act.at_unix_s <= until_unix_s and model in (None, act.model, model_of(act.model))
    ]


def _store_of(folder: Path) -> Path:
    """The cell's store: beside the folder of its logs, or in it, where a copy is looked at."""
    return next((path for path in (folder / FILE_NAME, folder.parent / FILE_NAME) if path.exists()), folder / FILE_NAME)


def _counts(act: Act, key: str) -> bool:
    """Whether it says something though it be 0."""
    return key == "replicas" and act.kind in (ActKind.HOLD, ActKind.PIN)


def _shown(key: str, value: Any) -> str:
    if key == "ladder":
        return f"{key} {' '.join(value.values()).strip()}"
    return f"until {clock(value)}" if key == "until_unix_s" else f"{key} {value}"


def _tell_orders(acts: Sequence[Act], as_json: bool) -> None:
    said = [
        {key: value for key, value in asdict(act).items() if value not in ("", 0, None) or _counts(act, key)}
        for act in acts
    ]
    if as_json:
        print_json(said)
        return
    if not said:
        console.print("Operators have ordered nothing.")
    for one in said:
        aside = ("at_unix_s", "kind", "model", "by")
        what = ", ".join(_shown(key, value) for key, value in one.items() if key not in aside)
        order = f"{one['by']}: {one['kind']} {one['model']}" + (f" ({what})" if what else "")
        console.print(escape(f"{clock(one['at_unix_s'])}  {order}"), highlight=False)


def _tell_ended(ended: list[Departure], as_json: bool) -> None:
    if as_json:
        print_json(ended)
        return
    if not ended:
        console.print("Nothing has ended.")
    names = short_names(dict.fromkeys(ids_in(ended)))
    for one in ended:
        sequel = sequel_of(one, names)
        digests = f"  requests: {' '.join(one.lost.digests)}" if one.lost.digests else ""
        reported = [f"{clock(one.at_unix_s)}  {end_of(one, names)}", f"  {sequel}" if sequel else "", digests]
        console.print(escape("\n".join(line for line in reported if line)), highlight=False)


def _time(text: str) -> float:
    """The time of day that is meant, as a Unix time."""
    today = f"{datetime.now():%Y-%m-%d}T"
    try:
        # OverflowError: a year that no clock of this machine has.
        with suppress(ValueError, OverflowError):
            return datetime.fromisoformat(text if "-" in text else today + text).timestamp()
        return time.time() - seconds_of(text)
    except ValueError:
        fail(f"--at {text!r}: allowed: 2026-11-21T12:03[:04], 12:03[:04], or a span like 10m", code=2)


def chosen_logs(model: str | None, files: Sequence[Path]) -> list[Path]:
    """Oldest first. Ends the command where there is none, or more than one to choose from."""
    if files:
        return list(files)
    folder = log_folder(files)
    there = sorted({model_in(path_parts(path)[0].removeprefix(PREFIX)) for path in folder.glob(f"{PREFIX}*.log")})
    if model is None and len(there) != 1:
        fail(f"{len(there)} models have a scaling log in {folder}; allowed: {', '.join(there) or 'none'}", code=2)
    found = log_files(folder, log_name(model or there[0]))
    if not found:
        fail(f"model {model!r} has no scaling log in {folder}; allowed: {', '.join(there) or 'none'}", code=2)
    return found


def log_folder(files: Sequence[Path]) -> Path:
    """Where those files are, or else the logs of the cluster on this machine. Ends the command where there is none, or
    more than one."""
    if files:
        return files[-1].parent
    states = known_clusters() or known_clusters(dead_too=True)
    if len(states) != 1:
        fail(f"{len(states)} clusters are known on this machine; name the log", hint="--log FILE", code=2)
    return RunDir(states[0].name).path / "logs"
