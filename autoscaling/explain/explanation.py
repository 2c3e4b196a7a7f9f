"""Explains one decision: its inputs, its reason, and what would have changed it; as data and as lines to read. Pure.

What would have changed the number is searched input by input: outwards, then by bisection. A policy need not be
monotonic: between two factors with the same answer there may be another one. The nearest change that was found is
shown.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from autoscaling.explain.moments import DecisionMoment, Lever, levers, unbound
from autoscaling.scaler.decision import Bounds, Limit, ScalingDecision


def words(decision: ScalingDecision, bounds: Bounds) -> str:
    reported = _reason(decision, bounds)
    return reported if decision.concern is None else f"{reported}; {decision.concern.sentence}"


def _reason(decision: ScalingDecision, bounds: Bounds) -> str:
    policy_reason = "" if decision.policy_reason is None else decision.policy_reason.sentence
    if decision.limit is None:
        return policy_reason
    desired = (
        f"the policy wanted {decision.desired} ({policy_reason})"
        if decision.desired is not None
        else "the policy was not asked"
    )
    by_schedule = decision.limit in (Limit.SCHEDULED_MIN, Limit.SCHEDULED_MAX)
    entry = f"; replicas.schedule bounds it ({decision.scheduled})" if decision.scheduled and not by_schedule else ""
    return f"{desired}{entry}; {decision.limit.sentence.format(decision=decision, bounds=bounds)}"


_UP = (1.1, 1.25, 1.5, 2.0, 3.0, 5.0, 10.0)
_DOWN = (0.9, 0.8, 2 / 3, 0.5, 1 / 3, 0.2, 0.1, 0.0)
_MORE = (1.0, 2.0, 3.0)
_NARROWINGS = 8


@dataclass(frozen=True, slots=True)
class Turn:
    """If the input had been `at` (a factor, or so many more), `replicas` would have been requested, for `reason`."""

    lever: str
    at: float
    counts: bool
    replicas: int
    reason: str


def turns(lever: Lever, requested: int) -> tuple[Turn, ...]:
    """The nearest changes of an input, in either direction, that would have changed the number."""
    if lever.counts:
        found = [_first(lever, requested, steps) for steps in (_MORE, tuple(-more for more in _MORE))]
    else:
        found = [_narrowed(lever, requested, steps) for steps in (_UP, _DOWN)]
    return tuple(turn for turn in found if turn is not None)


def _first(lever: Lever, requested: int, steps: tuple[float, ...]) -> Turn | None:
    for at in steps:
        decision = lever.decide(at)
        if decision is not None and decision.requested != requested:
            return _turn(lever, at, decision)
    return None


def _narrowed(lever: Lever, requested: int, steps: tuple[float, ...]) -> Turn | None:
    turn = _first(lever, requested, steps)
    if turn is None:
        return None
    index = steps.index(turn.at)
    same, other = (steps[index - 1] if index else 1.0), turn.at
    return _bisect(lever, requested, same, other) or turn


def _bisect(lever: Lever, requested: int, same: float, other: float) -> Turn | None:
    """Between a factor that changes nothing and one that does; geometric if both are positive."""
    found: Turn | None = None
    for _ in range(_NARROWINGS):
        middle = math.sqrt(same * other) if same > 0 and other > 0 else (same + other) / 2
        decision = lever.decide(middle)
        if decision is None or decision.requested == requested:
            same = middle
        else:
            other, found = middle, _turn(lever, middle, decision)
    return found


def _turn(lever: Lever, at: float, decision: ScalingDecision) -> Turn:
    return Turn(lever.name, at, lever.counts, decision.requested, decision.reason)


@dataclass(frozen=True, slots=True)
class Explanation:
    """`inputs` by name; `terms`: the policy's own quantities; `concern`: what no number solves. `turns`: what would
    have changed the number; `unbound`: the number without bounds and operators, if it differs. `insensitive`: inputs
    whose change in a wide range changes nothing."""

    at_unix_s: float
    model: str
    policy: str
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
        plain = {name: getattr(self, name) for name in self.__slots__}
        terms = {name: value if math.isfinite(value) else None for name, value in self.terms.items()}
        reported = [
            {
                "input": one.lever,
                "more" if one.counts else "times": one.at,
                "replicas": one.replicas,
                "reason": one.reason,
            }
            for one in self.turns
        ]
        return {
            **plain,
            "inputs": dict(self.inputs),
            "terms": terms,
            "turns": reported,
            "insensitive": list(self.insensitive),
        }

    def lines(self) -> list[str]:
        at = datetime.fromtimestamp(self.at_unix_s).strftime("%Y-%m-%d %H:%M:%S")
        step = f"{self.applied} -> {self.requested}" if self.requested != self.applied else f"stays {self.requested}"
        reported = [f"{at}  {self.model}  {step}  ({self.reason}, policy {self.policy})", f"  why: {self.words}."]
        reported.append("  inputs: " + ", ".join(f"{name} {_figure(value)}" for name, value in self.inputs.items()))
        if self.terms:
            reported.append(
                "  computed: " + ", ".join(f"{name} {_figure(value)}" for name, value in self.terms.items())
            )
        if self.unbound is not None:
            reported.append(f"  without bounds and operators: {self.unbound}")
        reported += [f"  otherwise: {_sentence(turn)}" for turn in self.turns]
        if self.insensitive:
            reported.append(f"  unchanged by much less or more of: {', '.join(self.insensitive)}")
        return reported


def explain(moment: DecisionMoment) -> Explanation:
    decision, signals = moment.decision, moment.record.signals
    found: list[Turn] = []
    insensitive: list[str] = []
    asked = decision.desired is not None
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
        policy=moment.policy,
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


def _inputs(moment: DecisionMoment) -> dict[str, float]:
    signals, first = moment.record.signals, moment.records[0].signals
    span_s = signals.at_s - first.at_s
    known: dict[str, float] = {
        "ready": signals.ready,
        "starting": signals.starting,
        "waiting": signals.waiting,
        "running": signals.running,
    }
    known["work waiting"] = signals.backlog
    if span_s > 0 and signals.epoch == first.epoch:
        known["requests/s"] = (signals.arrived - first.arrived) / span_s
        known["work/s"] = (signals.arrived_work - first.arrived_work) / span_s
    if signals.begun:
        known["starting on a node"] = signals.begun
    if signals.schedulable is not None:
        known["room for"] = signals.schedulable
    if signals.next_start is not None:
        known |= {f"start: {phase} s": seconds for phase, seconds in signals.next_start.phases}
    return known


def _sentence(turn: Turn) -> str:
    if turn.counts:
        return (
            f"with {abs(turn.at):.0f} {'more' if turn.at > 0 else 'fewer'} {turn.lever}: {turn.replicas} "
            f"({turn.reason})"
        )
    return f"with {turn.at:.2f} times the {turn.lever}: {turn.replicas} ({turn.reason})"


def _figure(value: float) -> str:
    if not math.isfinite(value):
        return str(value)
    return f"{value:,.0f}" if value == round(value) or abs(value) >= 1_000 else f"{value:.3g}"
