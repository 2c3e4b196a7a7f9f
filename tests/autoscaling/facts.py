"""Facts for tests, by what a scaling policy reads of them."""

from collections.abc import Iterable
from typing import Any

from autoscaling.signals.signals import Signals
from deployments.scheduling import LaneStats, ReplicaStats, Snapshot
from deployments.scheduling.replica import ReplicaStatus
from deployments.scheduling.snapshot import FlowStats

ATTAINMENT = {"interactive": 0.99, "document": 0.99}


def replica_like(
    name: str,
    status: ReplicaStatus,
    sequences: int,
    max_sequences: int,
    kv_tokens: int,
    max_kv_tokens: int,
    prefill_tokens: int,
    tpot_s: float | None,
) -> ReplicaStats:
    return ReplicaStats(
        name, status, sequences, sequences, kv_tokens, prefill_tokens, 0.0, None, max_sequences, max_kv_tokens, tpot_s
    )


def lane_like(name: str, waiting: int, work_tokens: float, oldest_wait_s: float) -> LaneStats:
    return LaneStats(name, waiting, work_tokens, work_tokens / 1_000.0, oldest_wait_s, None, None, 0, 0, 0)


def signals_like(
    at_s: float,
    unix_s: float,
    age_s: float,
    epoch: int,
    applied: int,
    starting: int,
    schedulable: int | None,
    replicas: Iterable[ReplicaStats],
    lanes: Iterable[LaneStats],
    flows: Iterable[FlowStats],
    finished: int,
    finished_work: float,
    counted: int,
    output_tokens: int,
) -> Signals:
    counts = {"finished": finished, "finished_work": finished_work, "counted": counted, "output_tokens": output_tokens}
    others: dict[str, Any] = {
        **dict.fromkeys(("submitted", "placed", "adopted", "promoted"), finished),
        "endings": {},
        "rejections": {},
    }
    others |= {"tokens_per_s": 1_000.0, "output_error": None, "other_lane": None, "prefix_trust": 0.0}
    snapshot = Snapshot(lanes=tuple(lanes), replicas=tuple(replicas), flows=tuple(flows), **counts, **others)
    return Signals(at_s, unix_s, age_s, epoch, applied, starting, schedulable, snapshot, ATTAINMENT)
