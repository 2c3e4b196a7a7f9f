"""One explained decision: what was known, why it was taken, what would have changed it; as data, and as lines to read. Pure."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from autoscaling.explain.levers import levers, unbound
from autoscaling.explain.moments import Moment
from autoscaling.explain.sensitivity import Turn, turns
from autoscaling.explain.words import words


@dataclass(frozen=True, slots=True)
class Explanation:
    """`inputs` by name; `terms` are the law's own quantities, `concern` what it says that no number mends. `turns`: what would have changed the
    number; `unbound`: the number without bounds and operators, where it is another. `insensitive`: inputs that could be halved, doubled and more
    without changing it."""

    at_unix_s: float
    model: str
    law: str
    applied: int
    requested: int
    reason: str
    words: str
    concern: str | None
    inputs: Mapping[str, float]
    terms: Mapping[str, float]
    turns: tuple[Turn, ...]
    insensitive: tuple[str, ...]
    unbound: int | None

    def as_json(self) -> dict[str, Any]:
        """Plain data."""
        plain = {name: getattr(self, name) for name in self.__slots__}
        terms = {name: value if math.isfinite(value) else None for name, value in self.terms.items()}
        told = [{"input": one.lever, "more" if one.counts else "times": one.at, "replicas": one.replicas, "reason": one.reason} for one in self.turns]
        return {**plain, "inputs": dict(self.inputs), "terms": terms, "turns": told, "insensitive": list(self.insensitive)}

    def lines(self) -> list[str]:
        """A paragraph."""
        at = datetime.fromtimestamp(self.at_unix_s).strftime("%Y-%m-%d %H:%M:%S")
        step = f"{self.applied} -> {self.requested}" if self.requested != self.applied else f"stays {self.requested}"
        told = [f"{at}  {self.model}  {step}  ({self.reason}, law {self.law})", f"  why: {self.words}."]
        told.append("  known: " + ", ".join(f"{name} {_figure(value)}" for name, value in self.inputs.items()))
        if self.terms:
            told.append("  computed: " + ", ".join(f"{name} {_figure(value)}" for name, value in self.terms.items()))
        if self.unbound is not None:
            told.append(f"  without bounds and operators: {self.unbound}")
        told += [f"  otherwise: {_sentence(turn)}" for turn in self.turns]
        if self.insensitive:
            told.append(f"  the same, had there been much less or more of: {', '.join(self.insensitive)}")
        return told


def explain(moment: Moment) -> Explanation:
    """Asks the law itself, again and again."""
    decision, signals = moment.decision, moment.record.signals
    found: list[Turn] = []
    insensitive: list[str] = []
    asked = decision.wanted is not None
    for lever in levers(moment) if asked else ():
        if (again := lever.decide(0.0 if lever.counts else 1.0)) is None or again.requested != decision.requested:
            continue  # the decision rests on more than what is asked again here
        moves = turns(lever, decision.requested)
        found += moves
        if not moves:
            insensitive.append(lever.name)
    free = unbound(moment).requested if asked and decision.limit is not None else decision.requested
    return Explanation(
        at_unix_s=signals.unix_s,
        model=moment.model,
        law=moment.law,
        applied=decision.applied,
        requested=decision.requested,
        reason=decision.reason,
        words=words(decision, moment.bounds),
        concern=decision.concern,
        inputs=_inputs(moment),
        terms=decision.terms,
        turns=tuple(found),
        insensitive=tuple(insensitive),
        unbound=None if free == decision.requested else free,
    )


def _inputs(moment: Moment) -> dict[str, float]:
    signals, first = moment.record.signals, moment.records[0].signals
    span_s = signals.at_s - first.at_s
    known: dict[str, float] = {"ready": signals.ready, "starting": signals.starting, "waiting": signals.waiting, "running": signals.running}
    known["work waiting"] = signals.backlog
    if span_s > 0 and signals.epoch == first.epoch:
        known["requests/s"] = (signals.arrived - first.arrived) / span_s
        known["work/s"] = (signals.arrived_work - first.arrived_work) / span_s
    if signals.schedulable is not None:
        known["room for"] = signals.schedulable
    return known


def _sentence(turn: Turn) -> str:
    if turn.counts:
        return f"with {abs(turn.at):.0f} {'more' if turn.at > 0 else 'fewer'} {turn.lever}: {turn.replicas} ({turn.reason})"
    return f"with {turn.at:.2f} times the {turn.lever}: {turn.replicas} ({turn.reason})"


def _figure(value: float) -> str:
    return f"{value:,.0f}" if value == round(value) or abs(value) >= 1_000 else f"{value:.3g}"
