"""Signals, controls and decisions as trees of lists, and back, exactly: floats keep every bit, and times are in
nanoseconds. Pure.

The order of fields is the schema: a change of a field of these classes raises `SCHEMA`. What peers have to spare comes
last, and only where there are peers. A line of the log holds only what changed since the line before: a mapping from
index to difference if two lists are equally long, otherwise the new value. Trees hold no mappings, so the two are never
confused.
"""

from collections.abc import Iterable
from typing import Any

from autoscaling.policies.policy import Concern, PolicyReason
from autoscaling.scaler.decision import Limit, ScalingDecision
from autoscaling.signals.signals import Forecast, NextStart, Signals
from deployments.cell.control import Control, ControlKind
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


SCHEMA = 8
Tree = list[Any]

_COUNTS = ("finished", "finished_work", "counted", "output_tokens")
_TABLES: dict[str, tuple[type[Any], tuple[str, ...], dict[str, Any]]] = {
    "replicas": (
        ReplicaStats,
        (
            *("replica_id", "status", "sequences", "max_sequences"),
            *("kv_tokens", "max_kv_tokens", "prefill_tokens", "tpot_s"),
        ),
        {"leases": 0, "prefill_tokens_per_s": 0.0, "held_by": None},
    ),
    "lanes": (
        LaneStats,
        ("name", "waiting", "work_tokens", "oldest_wait_s"),
        {"covered": 0, "estimated": 0, "censored": 0, **dict.fromkeys(("work_s", "head_waits_for", "eta_s"))},
    ),
    "flows": (FlowStats, ("lane", "traffic_class", "arrived", "work", "prompt_tokens", "met", "missed", "slo_s"), {}),
}
"""By column of the snapshot: the rows' type, the fields that a log stores, in order, and values for the others."""
_NOT_LOGGED: dict[str, Any] = {
    **dict.fromkeys(("submitted", "placed", "adopted", "promoted"), 0),
    **dict.fromkeys(("tokens_per_s", "output_error", "other_lane")),
    "prefix_trust": 0.0,
    "endings": {},
    "rejections": {},
}


def signals_tree(signals: Signals) -> Tree:
    """All fields but the two times."""
    return [
        signals.age_s,
        signals.epoch,
        signals.applied,
        signals.starting,
        signals.schedulable,
        *(_rows(names, getattr(signals, column)) for column, (_, names, _) in _TABLES.items()),
        *_row(_COUNTS, signals.snapshot),
        None if signals.forecast is None else _forecast_tree(signals.forecast),
        signals.forecast_failed,
        [[name, share] for name, share in signals.attainment.items()],
        None if signals.next_start is None else [list(one) for one in signals.next_start.phases],
        signals.begun,
        *([signals.peers_spare] if signals.peers_spare else []),
    ]


def signals_from(tree: Tree, ns: int, unix_ns: int) -> Signals:
    """Raises ValueError, TypeError or LookupError for a tree that is not of signals."""
    age_s, epoch, applied, starting, schedulable, *tables = tree[: 5 + len(_TABLES)]
    rest = tree[5 + len(_TABLES) :]
    counts, rest = rest[: len(_COUNTS)], rest[len(_COUNTS) :]
    forecast, forecast_failed, attainment, start, begun, *peers_spare = rest
    columns: dict[str, Any] = {
        column: tuple(kind(**dict(zip(names, row, strict=True)), **others) for row in table)
        for (column, (kind, names, others)), table in zip(_TABLES.items(), tables, strict=True)
    }
    snapshot = Snapshot(**columns, **dict(zip(_COUNTS, counts, strict=True)), **_NOT_LOGGED)
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
        None if forecast is None else Forecast(forecast[0], forecast[1], tuple(forecast[2]), tuple(forecast[3])),
        forecast_failed,
        None if start is None else NextStart(tuple((str(phase), float(seconds)) for phase, seconds in start)),
        begun,
        *peers_spare,
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
        decision.scheduled,
        [[name, value] for name, value in decision.terms.items()] if with_terms else None,
    ]


def decision_from(tree: Tree, signals: Signals) -> ScalingDecision:
    """With no terms where none were written. Raises ValueError or TypeError."""
    requested, desired, policy_reason, limit, error, concern, scheduled, terms = tree
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
        scheduled,
    )


def _forecast_tree(one: Forecast) -> Tree:
    return [one.at_s, one.step_s, list(one.work_per_s), list(one.error)]


def _row(names: tuple[str, ...], one: object) -> Tree:
    return [getattr(one, name) for name in names]


def _rows(names: tuple[str, ...], table: Iterable[object]) -> Tree:
    return [_row(names, one) for one in table]
