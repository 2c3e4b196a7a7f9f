"""A simulated run, as a report needs it, made once from what the run left behind: its figures, what was decided when
and why, and its worst minutes, those in which most requests that arrived missed their SLO, with what happened then.
Pure.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType

import numpy as np

from deployments.scheduling import WaitReason
from planning.report.words import percent
from planning.simulator.bins import Bins, Column, Mask
from planning.simulator.outcome import CAUSES, ClassShare, Figures, SimulationOutcome, class_shares, figures_of
from planning.simulator.sampler import Samples
from planning.simulator.timeline import LaneLine, Timeline, run_length_s, timeline
from planning.simulator.workload import Workload


class DecisionKind(StrEnum):
    """What was decided. `REPLICAS`: how many there shall be."""

    REJECTED = "rejected"
    EXPIRED = "expired"
    PROMOTED = "promoted"
    REPLICAS = "replicas"


@dataclass(frozen=True, slots=True)
class DecisionCount:
    """`count` decisions of one kind at `at_s`: `what` they were about (a lane, a number of replicas), and the
    reason."""

    at_s: float
    kind: DecisionKind
    reason: str
    what: str
    count: int = 1


def decisions(out: SimulationOutcome, lanes: Sequence[str], bins: Bins) -> tuple[DecisionCount, ...]:
    """What the scheduler decided beyond placing requests in their turn, one entry a bin, in the order of time."""
    found: list[DecisionCount] = []
    for number, lane in enumerate(lanes):
        own = out.lane == number
        for cause_number, cause in enumerate(CAUSES):
            found += _binned(
                bins, out.arrived_s, own & (out.cause == cause_number), DecisionKind.REJECTED, cause.value, lane
            )
        found += _binned(bins, out.expired_s, own & out.expired, DecisionKind.EXPIRED, "queue_wait", lane)
        found += _binned(bins, out.placed_s, own & out.promoted, DecisionKind.PROMOTED, "max_wait", lane)
    return tuple(sorted(found, key=lambda decision: decision.at_s))


def scalings(out: SimulationOutcome) -> tuple[DecisionCount, ...]:
    """What an autoscaler decided that changed the number of replicas: how many more or fewer, and its reason."""
    return tuple(
        DecisionCount(
            one.at_s,
            DecisionKind.REPLICAS,
            one.reason,
            "more" if one.requested > one.applied else "fewer",
            abs(one.requested - one.applied),
        )
        for one in out.scalings
        if one.changes
    )


def _binned(
    bins: Bins, times_s: Column, chosen: Mask, kind: DecisionKind, reason: str, what: str
) -> list[DecisionCount]:
    if not chosen.any():
        return []
    count = bins.counts(times_s[chosen])
    return [
        DecisionCount(float(bins.middles_s[index]), kind, reason, what, int(count[index]))
        for index in np.flatnonzero(count)
    ]


_SLICES_S = (60.0, 300.0, 900.0, 3_600.0, 21_600.0, 86_400.0)
_MAX_SLICES = 1_440
_NOTABLE = 1.3
"""Times the run's mean: so much more load is worth a word."""


WAITED_FOR = {
    WaitReason.NO_READY_REPLICA: "no replica was ready",
    WaitReason.SEQUENCES: "all replicas ran as many sequences as they may (max_num_seqs)",
    WaitReason.KV_TOKENS: "no KV cache had room for what it would need",
    WaitReason.PREFILL_BUDGET: "the replicas' prefill backlogs were full",
    WaitReason.ITL: "more at once would have broken a class's itl_ms",
    WaitReason.RESERVED: "what had room was held for another lane's head",
    WaitReason.OVER_SHARE: "its tenants were over their share, and others waited",
}


@dataclass(frozen=True, slots=True)
class Slice:
    """Of the requests that arrived in it, `missed` missed their SLO; `lane` had most of them. `happened`: in words,
    most important first."""

    from_s: float
    to_s: float
    arrived: int
    missed: int
    turned_away: int
    """Rejected, or expired in the lane."""
    lane: str
    ttft_p95_s: float
    """Of that lane; NaN where none was answered."""
    waiting_max: int
    """In that lane."""
    kv_max: float
    happened: tuple[str, ...]


def slices_for(length_s: float) -> Bins:
    """Minutes, or finer or coarser slices of a short or a long run."""
    finer = next((width for width in (1.0, 10.0) if length_s <= 30 * width), None)
    width = finer or next((width for width in _SLICES_S if length_s / width < _MAX_SLICES), _SLICES_S[-1])
    return Bins(width, int(length_s / width) + 1)


def worst(minutes: Timeline, maximum: int = 8) -> tuple[Slice, ...]:
    """At most so many slices with misses, worst first, of a timeline in the bins of `slices_for`."""
    missed = sum((lane.missed for lane in minutes.lanes), np.zeros(minutes.bins.count, dtype=np.int64))
    order = np.argsort(-missed, kind="stable")[:maximum]
    return tuple(_slice(minutes, int(index)) for index in order if missed[index])


def held_up_by(waits: Mapping[tuple[str, WaitReason], Column]) -> WaitReason | None:
    """What the lanes' heads waited for most. That a replica is reserved is a consequence: it counts only where there is
    no other reason."""
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
        int(lane.waiting_max[index]),
        float(minutes.cell.kv_max[index]),
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
    arrived = sum((one.arrived for one in minutes.lanes), np.zeros(minutes.bins.count, dtype=np.int64)).astype(
        np.float64
    )
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


@dataclass(frozen=True)
class ReportedRun:
    """The run in figures (by lane, the last in all), over time, and its worst minutes."""

    outcome: SimulationOutcome
    figures: tuple[Figures, ...]
    classes: tuple[ClassShare, ...]
    line: Timeline
    minutes: Timeline
    worst: tuple[Slice, ...]
    decided: tuple[DecisionCount, ...]

    @property
    def whole(self) -> Figures:
        """All requests."""
        return self.figures[-1]


def describe(
    out: SimulationOutcome,
    work: Workload,
    lanes: Sequence[str],
    samples: Samples,
    itl_s: Mapping[str, float] = MappingProxyType({}),
) -> ReportedRun:
    """`itl_s`: the time between tokens that classes aim at."""
    slo_s, tpot = work.ttft_slo_s, out.tpot_s
    names = np.array(work.traffic_class, dtype=object).astype(str)
    met = {
        name: np.where((names == name) & ~np.isnan(tpot), np.where(tpot <= bound, 1.0, 0.0), np.nan)
        for name, bound in itl_s.items()
        if (names == name).any()
    }
    line = timeline(out, slo_s, lanes, samples, itl_in_time=met)
    minutes = timeline(out, slo_s, lanes, samples, slices_for(run_length_s(out)))
    lines = tuple(figures_of(out, slo_s, lanes, work.rejected))
    all_decided = sorted((*scalings(out), *decisions(out, lanes, line.bins)), key=lambda one: one.at_s)
    classes = class_shares(out, slo_s, work.traffic_class, itl_s)
    return ReportedRun(out, lines, classes, line, minutes, worst(minutes), tuple(all_decided))
