"""The decisions of a log that are worth explaining, each with the state and the inputs to take it again; and the inputs
that can be varied. Pure.
"""

import math
import pickle
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

from autoscaling.log import SCALING, ScalingInputs, inputs_of
from autoscaling.scaler.decision import Bounds, ScalingDecision
from autoscaling.shadow.pair import Pair
from autoscaling.signals.signals import Signals
from deployments.decisions import Entry, Replayed, steps
from deployments.scheduling.snapshot import FlowStats

WINDOW_S = 60.0
"""A varied input differs for this many seconds before the decision: a policy averages, so one moment would change
little."""


@dataclass(frozen=True, slots=True)
class DecisionMoment:
    """One replayed decision. `state`: the pickled pair before the first of `records`; the
    decision is that of the last."""

    model: str
    policy: str
    bounds: Bounds
    decision: ScalingDecision
    records: tuple[ScalingInputs, ...]
    state: bytes

    @property
    def record(self) -> ScalingInputs:
        return self.records[-1]

    def pair(self) -> Pair:
        """The pair, new at each call, without its shadow, which changes nothing."""
        pair = SCALING.load(self.state)
        pair.shadow = pair.probation = None
        return pair


class _Window:
    """The records since a pickled state that is at least WINDOW_S old, if the log goes back so far."""

    def __init__(self, step: Replayed[Pair]) -> None:
        self._parts: list[tuple[bytes, list[ScalingInputs]]] = [(step.header.state, [])]
        self.pair = step.state

    def add(self, step: Replayed[Pair]) -> None:
        since = self._parts[-1][1]
        since.append(inputs_of(step.input))
        if since[0].signals.at_s + WINDOW_S <= step.input.at_s:
            self._parts = [*self._parts[-1:], (pickle.dumps(step.state, protocol=5), [])]

    def inputs(self) -> tuple[bytes, tuple[ScalingInputs, ...]]:
        return self._parts[0][0], tuple(record for _, records in self._parts for record in records)


def why(decision: ScalingDecision) -> tuple[str, str | None]:
    return decision.reason, decision.concern


def moments(entries: Iterable[Entry], any_code: bool = False) -> Iterator[DecisionMoment]:
    """The decisions that changed the number, the reason or the concern, in order. Raises LogError."""
    window: _Window | None = None
    before: ScalingDecision | None = None
    for step in steps(entries, SCALING, any_code):
        if window is None or window.pair is not step.state:
            window = _Window(step)
        asked = window.inputs()
        if step.decision.changes or before is None or why(before) != why(step.decision):
            pair = step.state
            yield DecisionMoment(
                step.header.model,
                pair.choice.name,
                pair.scaler.bounds,
                step.decision,
                (*asked[1], inputs_of(step.input)),
                asked[0],
            )
        window.add(step)
        before = step.decision


@dataclass(frozen=True, slots=True)
class Lever:
    """`decide` takes the variation: a factor (1: unchanged), or, if it `counts`, so many more or fewer (0: unchanged).
    None: not possible."""

    name: str
    decide: Callable[[float], ScalingDecision | None]
    counts: bool = False


def levers(moment: DecisionMoment) -> tuple[Lever, ...]:
    signals = moment.record.signals
    found = [
        Lever("arrivals", lambda factor: _again(moment, _arrivals(moment, factor))),
        Lever("forecast", lambda factor: _again(moment, (_forecast(one, factor) for one in _shown(moment)))),
        Lever("waiting work", lambda factor: _again(moment, (_waiting(one, factor) for one in _shown(moment)))),
        Lever("occupancy", lambda factor: _again(moment, (_occupied(one, factor) for one in _shown(moment)))),
        Lever("ready replicas", lambda more: _with_ready(moment, round(more)), counts=True),
        Lever("start-up time", lambda factor: _with_start_up(moment, factor)),
    ]
    there = {
        "arrivals": signals.arrived > moment.records[0].signals.arrived
        and len({record.signals.epoch for record in moment.records}) == 1,
        "forecast": signals.forecast is not None,
        "waiting work": signals.backlog > 0,
        "occupancy": signals.running > 0,
        "ready replicas": bool(signals.replicas) or signals.applied > 0,
        "start-up time": hasattr(moment.pair().scaler.policy, "assume_start_up"),
    }
    return tuple(lever for lever in found if there[lever.name])


def unbound(moment: DecisionMoment) -> ScalingDecision:
    """The number without the spec's bounds and operators' orders."""
    pair = moment.pair()
    *earlier, last = moment.records
    for record in earlier:
        pair.decide(record.signals, record.controls)
    bounds = pair.scaler.bounds
    pair.scaler.bounds = replace(
        bounds,
        minimum=0,
        maximum=1_000_000,
        ceiling=None,
        up_per_min=math.inf,
        down_per_min=math.inf,
        schedule=None,
    )
    return pair.decide(last.signals)


def _shown(moment: DecisionMoment) -> Iterable[Signals]:
    return (record.signals for record in moment.records)


def _again(moment: DecisionMoment, shown: Iterable[Signals]) -> ScalingDecision | None:
    pair, decision = moment.pair(), None
    for record, signals in zip(moment.records, shown, strict=True):
        decision = pair.decide(signals, record.controls)
    return decision


def _arrivals(moment: DecisionMoment, factor: float) -> Iterable[Signals]:
    """The counts since the first record grow `factor` times as fast."""
    first = {(flow.lane, flow.traffic_class): flow for flow in moment.records[0].signals.flows}

    def faster(flow: FlowStats) -> FlowStats:
        base = first.get((flow.lane, flow.traffic_class))
        arrived, work, prompts = (0, 0.0, 0) if base is None else (base.arrived, base.work, base.prompt_tokens)
        return replace(
            flow,
            arrived=arrived + round(factor * (flow.arrived - arrived)),
            work=work + factor * (flow.work - work),
            prompt_tokens=prompts + round(factor * (flow.prompt_tokens - prompts)),
        )

    return (signals.showing(flows=tuple(faster(flow) for flow in signals.flows)) for signals in _shown(moment))


def _forecast(signals: Signals, factor: float) -> Signals:
    forecast = signals.forecast
    if forecast is None:
        return signals
    return replace(signals, forecast=replace(forecast, work_per_s=tuple(factor * work for work in forecast.work_per_s)))


def _waiting(signals: Signals, factor: float) -> Signals:
    lanes = tuple(
        replace(lane, waiting=math.ceil(factor * lane.waiting), work_tokens=factor * lane.work_tokens)
        for lane in signals.lanes
    )
    return signals.showing(lanes=lanes)


def _occupied(signals: Signals, factor: float) -> Signals:
    replicas = tuple(
        replace(one, sequences=round(factor * one.sequences), kv_tokens=round(factor * one.kv_tokens))
        for one in signals.replicas
    )
    return signals.showing(replicas=replicas)


def _with_ready(moment: DecisionMoment, more: int) -> ScalingDecision | None:
    """At the last moment, so many more or fewer of the applied replicas are ready."""
    signals = moment.record.signals
    ready = signals.ready_replicas
    if not -len(ready) <= more <= signals.starting:
        return None
    others = tuple(one for one in signals.replicas if one not in ready)
    pattern = ready[0] if ready else None
    if pattern is None and more > 0:
        return None
    ready = (
        ready[: len(ready) + more]
        if more < 0
        else [*ready, *(replace(ready[0], replica_id=f"+{n}", sequences=0, kv_tokens=0) for n in range(more))]
    )
    changed = replace(signals.showing(replicas=(*ready, *others)), starting=signals.starting - more)
    return _again(moment, [*(record.signals for record in moment.records[:-1]), changed])


def _with_start_up(moment: DecisionMoment, factor: float) -> ScalingDecision | None:
    pair, decision = moment.pair(), None
    pair.scaler.policy.assume_start_up(factor)  # type: ignore[attr-defined]
    pair.scaler.follower.assume_start_up(factor)
    for record in moment.records:
        decision = pair.decide(record.signals, record.controls)
    return decision
