"""Reads the lines of a scaling log: headers, and one record per decision; restores the state of a restarted controller;
and replays, which gives the recorded facts to the recorded state and compares each decision with the recorded one.
"""

import json
import logging
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from autoscaling.log.codec import Tree, controls_from, decision_from, patched, signals_from
from autoscaling.log.header import KIND, Begin, Header, code_hash, read_header
from autoscaling.log.writer import log_name
from autoscaling.scaler.decision import ScalingDecision
from autoscaling.shadow.pair import Pair
from autoscaling.signals.signals import Signals
from deployments.cell.control import Control
from deployments.ownership.decision_log import KEPT


class LogError(ValueError):
    """A log cannot be read; the message names the line and the reason."""


@dataclass(frozen=True, slots=True)
class DecisionRecord:
    """One decision with all its inputs. `line` counts from 1 over all files. `explained`: the policy's terms were
    written too."""

    line: int
    ns: int
    unix_ns: int
    signals: Signals
    controls: tuple[Control, ...]
    decision: ScalingDecision
    explained: bool


def read_log(lines: Iterable[str], torn: bool = True) -> Iterator[tuple[int, Header | DecisionRecord]]:
    """Reads whole files in order. Raises LogError. `torn`: skips a last line that was cut off because its writer was
    killed."""
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
    """Whether it is part of a line, left by a failed write; a header follows it."""
    try:
        _entry(*kept, tree)
    except LogError:
        return kept[0] > 1
    return False


def _entry(number: int, line: str, tree: Tree | None) -> tuple[Header | DecisionRecord, Tree | None]:
    """The content of a line, given the tree of the line before (None after a header)."""
    try:
        content = json.loads(line)
        if isinstance(content, dict):
            return read_header(content), None
        ns, unix_ns, change = content
        whole = patched(tree, change)
        return _record(number, ns, unix_ns, whole), whole
    except (ValueError, TypeError, LookupError, OverflowError, RecursionError) as error:
        raise LogError(f"line {number}: {line[:60]!r}: {error}") from error


def _record(number: int, ns: int, unix_ns: int, tree: Any) -> DecisionRecord:
    signals_tree, controls, decision = tree
    signals = signals_from(signals_tree, ns, unix_ns)
    return DecisionRecord(
        number,
        ns,
        unix_ns,
        signals,
        controls_from(controls),
        decision_from(decision, signals),
        decision[-1] is not None,
    )


@dataclass(frozen=True, slots=True)
class ScalingDifference:
    """The first decision that differs from the recorded one."""

    line: int
    recorded: ScalingDecision
    replayed: ScalingDecision


@dataclass(frozen=True, slots=True)
class ScalingReplay:
    """The number of replayed decisions, and how many of them changed the number of replicas. `difference`: None if
    every decision was the recorded one."""

    decisions: int
    changes: int
    difference: ScalingDifference | None


@dataclass(frozen=True, slots=True)
class ReplayedDecision:
    """One replayed decision. `header`: the last one before it; `pair`: the state after it."""

    header: Header
    record: DecisionRecord
    pair: Pair
    decision: ScalingDecision

    @property
    def agrees(self) -> bool:
        """Whether it is the recorded one; terms count if they were written."""
        known = self.decision if self.record.explained else replace(self.decision, terms={})
        return known == self.record.decision


def steps(lines: Iterable[str], any_code: bool = False) -> Iterator[ReplayedDecision]:
    """Replays every decision of a log (whole files, in order). Raises LogError.

    `any_code`: also if other code recorded it, to see what a change decides differently.
    """
    pair: Pair | None = None
    header: Header | None = None
    for number, entry in read_log(lines):
        if isinstance(entry, Header):
            if pair is None or entry.begin is not Begin.CHECKPOINT:
                pair = _restored(entry, number, any_code)
            header = entry
            continue
        if pair is None or header is None:
            raise LogError(f"line {number}: a log begins with a header")
        yield ReplayedDecision(header, entry, pair, pair.decide(entry.signals, entry.controls))


def replay(lines: Iterable[str], any_code: bool = False) -> ScalingReplay:
    """Replays a log up to the first difference. Raises LogError."""
    decisions = changes = 0
    for step in steps(lines, any_code):
        decisions += 1
        changes += step.decision.changes
        if not step.agrees:
            return ScalingReplay(
                decisions, changes, ScalingDifference(step.record.line, step.record.decision, step.decision)
            )
    return ScalingReplay(decisions, changes, None)


def _restored(header: Header, number: int, any_code: bool) -> Pair:
    if header.code != code_hash() and not any_code:
        raise LogError(
            f"line {number}: recorded by code {header.code}, this is {code_hash()}: decisions may differ only "
            "because of that"
        )
    try:
        return header.pair()
    except ValueError as error:
        raise LogError(f"line {number}: its state cannot be read: {error}") from error


log = logging.getLogger("raylane.scaling")

YOUNG_S = 600.0
"""Older decisions say nothing about now."""
_HEADER = f'{{"log":"{KIND}"'


@dataclass(frozen=True, slots=True)
class Remembered:
    """The pair in its state after its last decision, and the time of that (nanoseconds: the log's own, and the time of
    day). `idle_s`: that was so long ago that only what it has learned of its replicas is still true; 0: it goes on."""

    pair: Pair
    ns: int
    unix_ns: int
    idle_s: float = 0.0


def is_scaling_log(first_line: str) -> bool:
    """Whether a log that begins like this holds scaling decisions."""
    return first_line.startswith(_HEADER)


def log_files(folder: Path, model: str) -> list[Path]:
    """The existing files, oldest first."""
    name = log_name(model) + ".jsonl"
    paths = [*(folder / f"{name}.{number}" for number in range(KEPT, 0, -1)), folder / name]
    return [path for path in paths if path.exists()]


def lines_of(files: list[Path]) -> Iterator[str]:
    """All complete lines of these files. A line that a killed writer left unfinished ends its file and is skipped.
    Raises OSError, LogError."""
    return (line for line in all_lines_of(files) if line.endswith("\n"))


def all_lines_of(files: list[Path]) -> Iterator[str]:
    """All lines of these files. Raises OSError, LogError."""
    for file in files:
        try:
            with file.open(encoding="utf-8") as lines:
                yield from lines
        except UnicodeDecodeError as error:
            raise LogError(f"{file}: is not text: {error}") from error


def remembered(folder: Path, model: str, unix_ns: int) -> Remembered | None:
    """The state that the log of `model` leads to, if the log is complete; else None. What is older than ten minutes, or
    written by other code, is not continued (`Remembered.idle_s`). Damage is logged."""
    try:
        lines = list(lines_of(log_files(folder, model)[-1:]))
        starts = [number for number, line in enumerate(lines) if is_scaling_log(line)]
        return _remembered(lines[starts[-1] :], model, unix_ns) if starts else None
    except Exception as error:  # damage of any kind, or the state of other code's classes: scaling begins anew
        log.warning(
            "model %s: scaling starts with nothing learned, because the log cannot be continued: %s: %s",
            model,
            type(error).__name__,
            error,
        )
        return None


def _remembered(lines: list[str], model: str, unix_ns: int) -> Remembered | None:
    """The pair of a header and the lines after it. Raises anything that a replay of a foreign log may raise."""
    if len(lines) == 1 or json.loads(lines[0])["model"] != model:
        return None
    own = json.loads(lines[0])["code"] == code_hash()
    *_, last = steps(lines, any_code=True)
    idle_s = max(1.0, (unix_ns - last.record.unix_ns) / 1e9)
    goes_on = own and idle_s <= YOUNG_S
    return Remembered(last.pair, last.record.ns, last.record.unix_ns, 0.0 if goes_on else idle_s)
