"""The files of a model's scaling log, and what a restarted controller takes from them."""

import json
import logging
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from autoscaling.log.header import KIND
from autoscaling.log.reader import LogError
from autoscaling.log.replay import steps
from autoscaling.log.writer import log_name
from autoscaling.shadow.pair import Pair
from deployments.ownership.decision_log import KEPT

log = logging.getLogger("raylane.scaling")

YOUNG_S = 600.0
"""What was decided longer ago says nothing about now."""
_HEADER = f'{{"log":"{KIND}"'


@dataclass(frozen=True, slots=True)
class Remembered:
    """What decided, in its state after its last decision, and when that was (nanoseconds: the log's own time, and of day)."""

    pair: Pair
    ns: int
    unix_ns: int


def is_scaling_log(first_line: str) -> bool:
    """Whether a log that begins so is one of scaling decisions."""
    return first_line.startswith(_HEADER)


def log_files(folder: Path, model: str) -> list[Path]:
    """Those that there are, oldest first."""
    name = log_name(model) + ".jsonl"
    paths = [*(folder / f"{name}.{number}" for number in range(KEPT, 0, -1)), folder / name]
    return [path for path in paths if path.exists()]


def lines_of(files: list[Path]) -> Iterator[str]:
    """All their whole lines. A line that a killed writer left unfinished ends its file, and is left out. Raises OSError, LogError."""
    return (line for line in all_lines_of(files) if line.endswith("\n"))


def all_lines_of(files: list[Path]) -> Iterator[str]:
    """All their lines, of any text. Raises OSError, LogError."""
    for file in files:
        try:
            with file.open(encoding="utf-8") as lines:
                yield from lines
        except UnicodeDecodeError as error:
            raise LogError(f"{file}: is no text: {error}") from error


def remembered(folder: Path, model: str, unix_ns: int) -> Remembered | None:
    """The state that the log of `model` leads to, if it is young, of this code, and whole; else None. Damage is told in the log."""
    try:
        lines = list(lines_of(log_files(folder, model)[-1:]))
        starts = [number for number, line in enumerate(lines) if is_scaling_log(line)]
        return _remembered(lines[starts[-1] :], model, unix_ns) if starts else None
    except Exception as error:  # damage of any kind, or the state of other code's classes: scaling begins anew
        log.warning("model %s: its scaling begins anew, since its log cannot be gone on with: %s: %s", model, type(error).__name__, error)
        return None


def _remembered(lines: list[str], model: str, unix_ns: int) -> Remembered | None:
    """Of a header and what follows it. Raises whatever the replay of a log that is none, or not ours, may raise."""
    if len(lines) == 1 or json.loads(lines[0])["model"] != model or unix_ns - json.loads(lines[-1])[1] > YOUNG_S * 1e9:
        return None
    *_, last = steps(lines)
    return Remembered(last.pair, last.record.ns, last.record.unix_ns)
