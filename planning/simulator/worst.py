"""The worst minutes of a simulated run: those in which most requests that arrived missed their SLO, and what happened then. Pure.

A slice is a minute; a run of a few minutes is cut finer, one of more than a day coarser.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from deployments.scheduling import WaitReason
from planning.simulator.bins import Bins, Column
from planning.simulator.timeline import LaneLine, Timeline
from planning.simulator.words import percent

_SLICES_S = (60.0, 300.0, 900.0, 3_600.0, 21_600.0, 86_400.0)
_MOST_SLICES = 1_440
_NOTABLE = 1.3
"""Times the run's mean: so much more load is worth a word."""

WAITED_FOR = {
    WaitReason.NO_READY_REPLICA: "no replica was ready",
    WaitReason.SEQUENCES: "all replicas ran as many sequences as they may (max_num_seqs)",
    WaitReason.KV_TOKENS: "no KV cache had room for what it would need",
    WaitReason.PREFILL_BUDGET: "the replicas' prefill backlogs were full",
    WaitReason.RESERVED: "what had room was held for another lane's head",
}


@dataclass(frozen=True, slots=True)
class Slice:
    """Of the requests that arrived in it, `missed` missed their SLO; `lane` had most of them. `happened`: in words, most important first."""

    from_s: float
    to_s: float
    arrived: int
    missed: int
    turned_away: int
    """Rejected, or expired in the lane."""
    lane: str
    ttft_p95_s: float
    """Of that lane; NaN where none was answered."""
    waiting_most: int
    """In that lane."""
    kv_most: float
    happened: tuple[str, ...]


def slices_for(length_s: float) -> Bins:
    """Minutes, or finer or coarser slices of a short or a long run."""
    finer = next((width for width in (1.0, 10.0) if length_s <= 30 * width), None)
    width = finer or next((width for width in _SLICES_S if length_s / width < _MOST_SLICES), _SLICES_S[-1])
    return Bins(width, int(length_s / width) + 1)


def worst(minutes: Timeline, most: int = 8) -> tuple[Slice, ...]:
    """At most so many slices with misses, worst first, of a timeline in the bins of `slices_for`."""
    missed = sum((lane.missed for lane in minutes.lanes), np.zeros(minutes.bins.count, dtype=np.int64))
    order = np.argsort(-missed, kind="stable")[:most]
    return tuple(_slice(minutes, int(index)) for index in order if missed[index])


def held_up_by(waits: Mapping[tuple[str, WaitReason], Column]) -> WaitReason | None:
    """What the lanes' heads waited for most. That a replica is reserved is a consequence: it counts only where there is no other reason."""
    total: dict[WaitReason, float] = {}
    for (_, reason), share in waits.items():
        total[reason] = total.get(reason, 0.0) + float(share.sum())
    seen = [reason for reason, sum_ in total.items() if sum_ > 0]
    return max(seen, key=lambda reason: (reason is not WaitReason.RESERVED, total[reason]), default=None)


def _slice(minutes: Timeline, index: int) -> Slice:
    lanes = minutes.lanes
    lane = max(lanes, key=lambda one: int(one.missed[index]))
    return Slice(
        float(minutes.bins.edges_s[index]),
        min(float(minutes.bins.edges_s[index + 1]), minutes.length_s),
        sum(int(one.arrived[index]) for one in lanes),
        sum(int(one.missed[index]) for one in lanes),
        sum(int(one.rejected[index] + one.expired[index]) for one in lanes),
        lane.name,
        float(lane.ttft_p95_s[index]),
        int(lane.waiting_most[index]),
        float(minutes.cell.kv_most[index]),
        tuple(_happened(minutes, lane, index)),
    )


def _happened(minutes: Timeline, lane: LaneLine, index: int) -> Iterator[str]:
    reason = held_up_by({key: share[index : index + 1] for key, share in minutes.waits.items()})
    waited = max((float(share[index]) for (_, one), share in minutes.waits.items() if one is reason), default=0.0)
    if reason is not None and waited >= 0.2:
        yield f"{WAITED_FOR[reason]}, {percent(waited)} of the time"
    ttft = float(lane.ttft_sum_s[index])
    if ttft > 0:
        share = float(lane.queued_sum_s[index]) / ttft
        where = (share, "waiting in the lane") if share >= 0.5 else (1 - share, "in the engine")
        yield f"{percent(where[0])} of the late ones' TTFT was {where[1]}"
    arrived = sum((one.arrived for one in minutes.lanes), np.zeros(minutes.bins.count, dtype=np.int64)).astype(np.float64)
    for name, column in (
        ("requests", arrived),
        ("prompt tokens", minutes.cell.prompt_tokens_offered),
        ("output tokens", minutes.cell.output_tokens_offered),
    ):
        times = _times_the_mean(column, index)
        if times >= _NOTABLE:
            yield f"{times:.1f} x the mean {name} arrived"
    before = int(lane.waiting[index - 1]) if index else 0
    if before > max(10, 0.2 * float(lane.arrived[index])):
        yield f"{before:,} waited already"
    if minutes.cell.preemptions[index] >= 1:
        yield f"{minutes.cell.preemptions[index]:,.0f} preemptions"


def _times_the_mean(column: Column, index: int) -> float:
    """Over the bins up to the last in which anything arrived."""
    busy = column[: int(np.flatnonzero(column)[-1]) + 1] if column.any() else column
    return float(column[index] / busy.mean()) if busy.any() else 0.0
