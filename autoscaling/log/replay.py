"""Replays a scaling log: gives the recorded facts to what decided, as it was, and compares each decision with the recorded one. Pure."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from autoscaling.log.code import code_hash
from autoscaling.log.header import Begin, Header
from autoscaling.log.reader import LogError, Record, read_log
from autoscaling.scaler.decision import Decision
from autoscaling.shadow.pair import Pair


@dataclass(frozen=True, slots=True)
class Difference:
    """The first decision that was not the recorded one."""

    line: int
    recorded: Decision
    replayed: Decision


@dataclass(frozen=True, slots=True)
class Replay:
    """`decisions` taken again, of which `changes` changed the number of replicas; `difference`: None where every one was the recorded one."""

    decisions: int
    changes: int
    difference: Difference | None


@dataclass(frozen=True, slots=True)
class Step:
    """One decision taken again: `header` is the last one before it, `pair` what decided, in the state after it."""

    header: Header
    record: Record
    pair: Pair
    decision: Decision

    @property
    def agrees(self) -> bool:
        """Whether it is the recorded one; terms count where they were written."""
        known = self.decision if self.record.explained else replace(self.decision, terms={})
        return known == self.record.decision


def steps(lines: Iterable[str], any_code: bool = False) -> Iterator[Step]:
    """Every decision of a log (whole files, in order), taken again. Raises LogError.

    `any_code`: also where it was recorded by other code, to see what a change decides differently.
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
        yield Step(header, entry, pair, pair.decide(entry.signals, entry.controls))


def replay(lines: Iterable[str], any_code: bool = False) -> Replay:
    """Replays a log up to the first difference. Raises LogError."""
    decisions = changes = 0
    for step in steps(lines, any_code):
        decisions += 1
        changes += step.decision.changes
        if not step.agrees:
            return Replay(decisions, changes, Difference(step.record.line, step.record.decision, step.decision))
    return Replay(decisions, changes, None)


def _restored(header: Header, number: int, any_code: bool) -> Pair:
    if header.code != code_hash() and not any_code:
        raise LogError(f"line {number}: recorded by code {header.code}, this is {code_hash()}: decisions may differ for that reason alone")
    try:
        return header.pair()
    except ValueError as error:
        raise LogError(f"line {number}: its state cannot be read: {error}") from error
