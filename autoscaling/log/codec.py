"""Signals, controls and decisions as trees of lists, and back, exactly: floats keep every bit, and times are in
nanoseconds. Pure.

The order of fields is the schema: a change of a field of these classes raises `SCHEMA`. A line of the log holds only
what changed since the line before: a mapping from index to difference if two lists are equally long, otherwise the new
value. Trees hold no mappings, so the two are never confused.
"""

from typing import Any

from autoscaling.policies.policy import Concern, PolicyReason
from autoscaling.scaler.decision import Limit, ScalingDecision
from autoscaling.signals.signals import Forecast, Signals
from deployments.cell.control import Control, ControlKind
from deployments.cell.scaling_facts import LatencySignals
from deployments.scheduling import LaneStats, ReplicaStats, Snapshot
from deployments.scheduling.snapshot import FlowStats

NOTHING: dict[str, Any] = {}
"""The difference of equal trees."""


def difference(old: Any, new: Any) -> Any:
    """The difference that turns `old` into `new`."""
    if old == new:
        return NOTHING
    if isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        return {str(index): difference(a, b) for index, (a, b) in enumerate(zip(old, new, strict=True)) if a != b}
    return new


def patched(old: Any, change: Any) -> Any:
    """The new tree. Raises ValueError if the difference does not fit."""
    if not isinstance(change, dict):
        return change
    if not change:
        return old
    if not isinstance(old, list):
        raise ValueError(f"a change of {sorted(change)} of something that is not a list: {str(old)[:40]!r}")
    new = list(old)
    for key, part in change.items():
        index = int(key)
        if not 0 <= index < len(new):
            raise ValueError(f"a change of place {index} of {len(new)}")
        new[index] = patched(new[index], part)
    return new


SCHEMA = 4

Tree = list[Any]


def signals_tree(signals: Signals) -> Tree:
    """All fields but the two times."""
    return [
        signals.age_s,
        signals.epoch,
        signals.applied,
        signals.starting,
        signals.schedulable,
        [
            [
                r.replica_id,
                r.status,
                r.sequences,
                r.max_sequences,
                r.kv_tokens,
                r.max_kv_tokens,
                r.prefill_tokens,
                r.tpot_s,
            ]
            for r in signals.replicas
        ],
        [[lane.name, lane.waiting, lane.work_tokens, lane.oldest_wait_s] for lane in signals.lanes],
        [
            [f.lane, f.traffic_class, f.arrived, f.work, f.prompt_tokens, f.met, f.missed, f.slo_s]
            for f in signals.flows
        ],
        signals.snapshot.finished,
        signals.snapshot.finished_work,
        signals.snapshot.counted,
        signals.snapshot.output_tokens,
        None if signals.latencies is None else _latencies_tree(signals.latencies),
        None if signals.forecast is None else _forecast_tree(signals.forecast),
        signals.forecast_failed,
        [[name, share] for name, share in signals.attainment.items()],
    ]


def signals_from(tree: Tree, ns: int, unix_ns: int) -> Signals:
    """Raises ValueError, TypeError or LookupError for a tree that is not of signals."""
    age_s, epoch, applied, starting, schedulable, replicas, lanes, flows, *rest = tree
    finished, finished_work, counted, output_tokens, latencies, forecast, forecast_failed, attainment = rest
    snapshot = Snapshot(
        lanes=tuple(_lane(*lane) for lane in lanes),
        replicas=tuple(_replica(*replica) for replica in replicas),
        flows=tuple(FlowStats(*flow) for flow in flows),
        finished=finished,
        finished_work=finished_work,
        counted=counted,
        output_tokens=output_tokens,
        **_NOT_KEPT,
    )
    return Signals(
        ns / 1e9,
        unix_ns / 1e9,
        age_s,
        epoch,
        applied,
        starting,
        schedulable,
        snapshot,
        dict(attainment),
        None if latencies is None else LatencySignals(*latencies),
        None if forecast is None else Forecast(forecast[0], forecast[1], tuple(forecast[2]), tuple(forecast[3])),
        forecast_failed,
    )


_NOT_KEPT: dict[str, Any] = {
    **dict.fromkeys(("submitted", "placed", "adopted", "promoted"), 0),
    **dict.fromkeys(("tokens_per_s", "output_error", "other_lane")),
    "prefix_trust": 0.0,
    "endings": {},
    "rejections": {},
}


def _lane(name: str, waiting: int, work_tokens: float, oldest_wait_s: float) -> LaneStats:
    return LaneStats(name, waiting, work_tokens, None, oldest_wait_s, None, None, 0, 0, 0)


def _replica(
    replica_id: str,
    status: str,
    sequences: int,
    max_sequences: int,
    kv_tokens: int,
    max_kv_tokens: int,
    prefill_tokens: int,
    tpot_s: float | None,
) -> ReplicaStats:
    return ReplicaStats(
        replica_id, status, 0, sequences, kv_tokens, prefill_tokens, 0.0, None, max_sequences, max_kv_tokens, tpot_s
    )


def controls_tree(controls: tuple[Control, ...]) -> Tree:
    return [
        [control.kind.value, control.replicas, control.until_unix_s, control.by, control.why] for control in controls
    ]


def controls_from(tree: Tree) -> tuple[Control, ...]:
    """Raises ValueError or TypeError."""
    return tuple(Control(ControlKind(kind), *rest) for kind, *rest in tree)


def decision_tree(decision: ScalingDecision, with_terms: bool) -> Tree:
    """What was decided. `applied`, `ready` and the time stand in the signals; terms only where they are wanted."""
    return [
        decision.requested,
        decision.desired,
        None if decision.policy_reason is None else decision.policy_reason.value,
        None if decision.limit is None else decision.limit.value,
        decision.error,
        None if decision.concern is None else decision.concern.value,
        [[name, value] for name, value in decision.terms.items()] if with_terms else None,
    ]


def decision_from(tree: Tree, signals: Signals) -> ScalingDecision:
    """With no terms where none were written. Raises ValueError or TypeError."""
    requested, desired, policy_reason, limit, error, concern, terms = tree
    return ScalingDecision(
        signals.at_s,
        signals.applied,
        signals.ready,
        requested,
        desired,
        None if policy_reason is None else PolicyReason(policy_reason),
        None if limit is None else Limit(limit),
        {} if terms is None else dict(terms),
        error,
        None if concern is None else Concern(concern),
    )


def _latencies_tree(one: LatencySignals) -> Tree:
    return [one.span_s, one.requests, one.ttft_p50_s, one.ttft_p90_s, one.ttft_p99_s, one.tpot_p90_s]


def _forecast_tree(one: Forecast) -> Tree:
    return [one.at_s, one.step_s, list(one.work_per_s), list(one.error)]
