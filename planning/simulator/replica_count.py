"""How many replicas there were over time, by state, and what that adds up to."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from itertools import pairwise

import numpy as np

from planning.simulator.bins import Bins, Column
from planning.simulator.fleet import Life


@dataclass(frozen=True, slots=True)
class ReplicaCount:
    """From `at_s` on there are so many replicas in each state. All of them hold their GPUs."""

    at_s: float
    ready: int
    warming: int = 0
    draining: int = 0
    failed: int = 0


def counts_of(lives: Sequence[Life]) -> list[ReplicaCount]:
    """What the replicas' lives add up to: a count at each of their moments, the first at 0."""
    moments = sorted(
        {0.0, *(moment for life in lives for moment in (life.started_s, life.ready_s, life.drained_s, life.ended_s) if moment < math.inf)}
    )
    return [_count_at(lives, moment) for moment in moments]


def _count_at(lives: Sequence[Life], now: float) -> ReplicaCount:
    ready = warming = draining = 0
    for life in lives:
        if life.started_s <= now < life.ended_s:
            warming += now < life.ready_s and now < life.drained_s
            draining += life.drained_s <= now
            ready += life.ready_s <= now < life.drained_s
    return ReplicaCount(now, ready, warming, draining)


STATES = tuple(field.name for field in fields(ReplicaCount) if field.name != "at_s")


def replica_seconds(counts: Sequence[ReplicaCount], state: str, at_s: Column) -> Column:
    """Replica-seconds in that state from the start to each of the times. `counts` ascend, the first at 0."""
    if not counts or counts[0].at_s != 0 or any(a.at_s > b.at_s for a, b in pairwise(counts)):
        raise ValueError(f"counts of replicas ascend from second 0; got {[count.at_s for count in counts[:5]]}")
    begins = np.array([count.at_s for count in counts])
    number = np.array([getattr(count, state) for count in counts], dtype=np.float64)
    before = np.concatenate(([0.0], np.cumsum(number[:-1] * np.diff(begins))))
    last = np.searchsorted(begins, at_s, side="right") - 1
    seconds: Column = before[last] + number[last] * (at_s - begins[last])
    return seconds


def mean_counts(counts: Sequence[ReplicaCount], state: str, bins: Bins) -> Column:
    """The mean number of replicas in that state in each bin."""
    mean: Column = np.diff(replica_seconds(counts, state, bins.edges_s)) / bins.width_s
    return mean
