"""The lines of a scaling log, read: headers, and one record a decision. Nothing is decided again here (`replay.py` does). Pure."""

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from autoscaling.log.codec import Tree, controls_from, decision_from, signals_from
from autoscaling.log.header import Header, read_header
from autoscaling.log.tree import patched
from autoscaling.scaler.controls import Control
from autoscaling.scaler.decision import Decision
from autoscaling.signals.signals import Signals


class LogError(ValueError):
    """A log that cannot be read; the message says which line and why."""


@dataclass(frozen=True, slots=True)
class Record:
    """One decision with all its inputs. `line` counts from 1 over all that is read. `explained`: the terms of the law were written down with it."""

    line: int
    ns: int
    unix_ns: int
    signals: Signals
    controls: tuple[Control, ...]
    decision: Decision
    explained: bool


def read_log(lines: Iterable[str], torn: bool = True) -> Iterator[tuple[int, Header | Record]]:
    """Whole files, in order. Raises LogError. `torn`: a last line that was cut short (its writer was killed) is left out instead."""
    tree: Tree | None = None
    kept: tuple[int, str] | None = None
    for number, line in enumerate(lines, 1):
        if not line.strip():  # no more of a line than its end was written
            continue
        if kept is not None and not (line.startswith("{") and _is_torn(kept, tree)):
            yield kept[0], (entry := _entry(*kept, tree))[0]
            tree = entry[1]
        kept = (number, line)
    if kept is None:
        return
    try:
        last = _entry(*kept, tree)[0]
    except LogError:
        if torn and kept[0] > 1 and not kept[1].endswith("\n"):
            return
        raise
    yield kept[0], last


def _is_torn(kept: tuple[int, str], tree: Tree | None) -> bool:
    """Whether it is a part of a line, left by a write that failed; the header after it makes up for it."""
    try:
        _entry(*kept, tree)
    except LogError:
        return kept[0] > 1
    return False


def _entry(number: int, line: str, tree: Tree | None) -> tuple[Header | Record, Tree | None]:
    """What a line says, given the tree of the line before (None after a header)."""
    try:
        content = json.loads(line)
        if isinstance(content, dict):
            return read_header(content), None
        ns, unix_ns, change = content
        whole = patched(tree, change)
        return _record(number, ns, unix_ns, whole), whole
    except (ValueError, TypeError, LookupError, OverflowError, RecursionError) as error:
        raise LogError(f"line {number}: {line[:60]!r}: {error}") from error


def _record(number: int, ns: int, unix_ns: int, tree: Any) -> Record:
    signals_tree, controls, decision = tree
    signals = signals_from(signals_tree, ns, unix_ns)
    return Record(number, ns, unix_ns, signals, controls_from(controls), decision_from(decision, signals), decision[-1] is not None)
