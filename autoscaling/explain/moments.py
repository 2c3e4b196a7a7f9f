"""The decisions of a log that are worth a word, each with the state and the inputs from which it can be asked again. Pure."""

import pickle
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from autoscaling.log.header import load_pair
from autoscaling.log.reader import Record
from autoscaling.log.replay import Step, steps
from autoscaling.scaler.bounds import Bounds
from autoscaling.scaler.decision import Decision
from autoscaling.shadow.pair import Pair

WINDOW_S = 60.0
"""A changed input is changed for so many seconds before the decision: a law averages, and one changed moment would tell it little."""


@dataclass(frozen=True, slots=True)
class Moment:
    """One decision, as it was taken again, and the one before it. `state`: what decided, pickled, before the first of `records`; the decision is that
    of the last."""

    model: str
    law: str
    bounds: Bounds
    decision: Decision
    before: Decision | None
    records: tuple[Record, ...]
    state: bytes

    @property
    def record(self) -> Record:
        """The moment itself."""
        return self.records[-1]

    @property
    def changes_reason(self) -> bool:
        """Whether the decision before had another reason or concern."""
        return self.before is None or why(self.before) != why(self.decision)

    def pair(self) -> Pair:
        """What decided, new at each call; without its shadow, which changes nothing."""
        pair = load_pair(self.state)
        pair.shadow = pair.probation = None
        return pair


class _Window:
    """The records since a pickled state that is at least WINDOW_S old, where the log goes back so far."""

    def __init__(self, step: Step) -> None:
        self._parts: list[tuple[bytes, list[Record]]] = [(step.header.state, [])]
        self.pair = step.pair

    def add(self, step: Step) -> None:
        """The next decision was taken."""
        self._parts[-1][1].append(step.record)
        if self._parts[-1][1][0].ns + WINDOW_S * 1e9 <= step.record.ns:
            self._parts = [*self._parts[-1:], (pickle.dumps(step.pair, protocol=5), [])]

    def inputs(self) -> tuple[bytes, tuple[Record, ...]]:
        """The state, and what it was shown since."""
        return self._parts[0][0], tuple(record for _, records in self._parts for record in records)


def why(decision: Decision) -> tuple[str, str | None]:
    """The reason, and the concern where there is one."""
    return decision.reason, decision.concern


def moments(lines: Iterable[str], any_code: bool = False) -> Iterator[Moment]:
    """The decisions that changed the number, the reason or the concern, in order. Raises LogError."""
    window: _Window | None = None
    before: Decision | None = None
    for step in steps(lines, any_code):
        if window is None or window.pair is not step.pair:
            window = _Window(step)
        asked = window.inputs()
        if step.decision.changes or before is None or why(before) != why(step.decision):
            pair = step.pair
            yield Moment(step.header.model, pair.choice.name, pair.scaler.bounds, step.decision, before, (*asked[1], step.record), asked[0])
        window.add(step)
        before = step.decision
