"""Signals for tests: a healthy moment, and what differs from it."""

from dataclasses import replace
from typing import Any

from autoscaling.signals.signals import FlowSignal, LaneSignal, ReplicaSignal, ReplicaState, Signals


def replicas(count: int, state: ReplicaState = ReplicaState.READY, sequences: int = 0) -> tuple[ReplicaSignal, ...]:
    """So many, alike."""
    return tuple(ReplicaSignal(f"{state}{number}", state, sequences, 32, 100 * sequences, 100_000, 0, 0.03) for number in range(count))


def moment(
    at_s: float = 0.0, ready: int = 2, applied: int | None = None, waiting_work: float = 0.0, arrived_work: float = 0.0, **other: Any
) -> Signals:
    """All that is applied is ready, unless told otherwise."""
    applied = ready if applied is None else applied
    waiting = 1 if waiting_work else 0
    signals = Signals(
        at_s,
        1e9 + at_s,
        0.0,
        1,
        applied,
        max(0, applied - ready),
        None,
        replicas(ready),
        (LaneSignal("short", waiting, waiting_work, 0.0), LaneSignal("long", 0, 0.0, 0.0)),
        (FlowSignal("short", "interactive", int(arrived_work // 1_000), arrived_work, int(arrived_work // 2), 0, 0, 2.0, 0.99),),
        0,
        0.0,
        0,
        0,
    )
    return replace(signals, **other)
