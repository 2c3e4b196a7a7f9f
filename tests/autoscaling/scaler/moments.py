"""Signals for tests: a healthy moment, and what differs from it."""

from dataclasses import fields, replace
from typing import Any

from autoscaling.signals.signals import Signals
from deployments.scheduling import ReplicaStats, Snapshot
from deployments.scheduling.replica import ReplicaStatus
from deployments.scheduling.snapshot import FlowStats
from tests.autoscaling.facts import lane_like, replica_like, signals_like


def replicas(count: int, state: ReplicaStatus = ReplicaStatus.READY, sequences: int = 0) -> tuple[ReplicaStats, ...]:
    """So many, alike."""
    return tuple(
        replica_like(f"{state}{number}", state, sequences, 32, 100 * sequences, 100_000, 0, 0.03)
        for number in range(count)
    )


def moment(
    at_s: float = 0.0,
    ready: int = 2,
    applied: int | None = None,
    waiting_work: float = 0.0,
    arrived_work: float = 0.0,
    **other: Any,
) -> Signals:
    """All that is applied is ready, unless told otherwise."""
    applied = ready if applied is None else applied
    waiting = 1 if waiting_work else 0
    lanes = (lane_like("short", waiting, waiting_work, 0.0), lane_like("long", 0, 0.0, 0.0))
    arrived, prompts = int(arrived_work // 1_000), int(arrived_work // 2)
    flows = (FlowStats("short", "interactive", arrived, arrived_work, prompts, 0, 0, 2.0),)
    starting = max(0, applied - ready)
    now = (at_s, 1e9 + at_s, 0.0, 1, applied, starting, None)
    signals = signals_like(*now, replicas(ready), lanes, flows, 0, 0.0, 0, 0)
    shown = {one.name: other.pop(one.name) for one in fields(Snapshot) if one.name in other}
    return replace(signals.showing(**shown), **other)
