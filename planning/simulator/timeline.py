"""What a simulated run looked like over time, in bins: by lane, and of the cell. Pure; computed when the run is over.

Requests count where they arrived (TTFT, in time, late), and what happened to them where it happened (rejected, expired, promoted, tokens).
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from deployments.scheduling import WaitReason
from planning.simulator.bins import Bins, Column, Counts, bins_for
from planning.simulator.outcome import Outcome
from planning.simulator.replica_count import STATES, ReplicaCount, mean_counts, replica_seconds
from planning.simulator.sampler import Samples


@dataclass(frozen=True)
class LaneLine:
    """One lane, a value a bin. `missed`: those that arrived then and had no first token within their SLO, rejected and expired ones included.

    `ttft_sum_s` and `queued_sum_s` are over the answered ones among the missed: which part of their TTFT was the lane's.
    """

    name: str
    arrived: Counts
    missed: Counts
    ttft_p50_s: Column
    ttft_p95_s: Column
    ttft_sum_s: Column
    queued_sum_s: Column
    waiting: Counts
    """At the end of the bin."""
    waiting_most: Counts
    rejected: Counts
    expired: Counts
    promoted: Counts
    """Promoted requests that were placed."""


@dataclass(frozen=True)
class CellLine:
    """The whole cell, a value a bin. Tokens are counts, not rates: offered ones came with the requests that arrived; the others are those that the
    engines prefilled and decoded, spread evenly over the time that each request's prefill and decode took."""

    running: Column
    inside: Column
    kv_mean: Column
    kv_most: Column
    preemptions: Column
    finished: Counts
    prompt_tokens_offered: Column
    output_tokens_offered: Column
    prompt_tokens: Column
    output_tokens: Column
    replicas: Mapping[str, Column]
    """By state (`replica_count.STATES`), the mean in the bin."""
    replica_hours: Column
    """From the start to the end of the bin, or of the run."""


@dataclass(frozen=True)
class Timeline:
    """A run in bins. `waits`: by lane and reason, the share of the bin in which the lane's head waited for that."""

    bins: Bins
    length_s: float
    lanes: tuple[LaneLine, ...]
    cell: CellLine
    waits: Mapping[tuple[str, WaitReason], Column]


def timeline(
    out: Outcome, slo_s: Column, lanes: Sequence[str], samples: Samples, replicas: Sequence[ReplicaCount], bins: Bins | None = None
) -> Timeline:
    """The run over time; `slo_s` is each request's TTFT SLO. `bins` default to some hundreds over the run."""
    length_s = run_length_s(out)
    bins = bins or bins_for(length_s)
    lines = tuple(_lane(name, out, slo_s, bins, number) for number, name in enumerate(lanes))
    return Timeline(bins, length_s, lines, _cell(out, samples, replicas, bins, length_s), _waits(samples, bins))


def run_length_s(out: Outcome) -> float:
    """From the start to the last thing that happened."""
    return max(out.ended_s, *(float(np.nanmax(column)) for column in (out.arrived_s, out.finished_s) if not np.isnan(column).all()), 0.0)


def _lane(name: str, out: Outcome, slo_s: Column, bins: Bins, number: int) -> LaneLine:
    own = out.lane == number
    arrived, ttft, queued = out.arrived_s[own], out.ttft_s[own], out.queued_s[own]
    late = ttft > slo_s[own]
    p50, p95 = bins.quantiles(arrived, ttft, (0.5, 0.95))
    left = np.fmin(out.placed_s, out.expired_s)[own]
    waited = left > arrived
    waiting, most = bins.levels(arrived[waited], left[waited])
    return LaneLine(
        name,
        bins.counts(arrived),
        bins.counts(arrived[late | np.isnan(ttft)]),
        p50,
        p95,
        bins.sums(arrived[late], ttft[late]),
        bins.sums(arrived[late], queued[late]),
        waiting,
        most,
        bins.counts(out.arrived_s[own & out.rejected]),
        bins.counts(out.expired_s[own]),
        bins.counts(out.placed_s[own & out.promoted]),
    )


def _cell(out: Outcome, samples: Samples, replicas: Sequence[ReplicaCount], bins: Bins, length_s: float) -> CellLine:
    at_s, until_s = samples.at_s, np.minimum(bins.edges_s[1:], length_s)
    so_far = bins.most(at_s, samples.preemptions)
    answered, prompt, output = ~np.isnan(out.first_s), out.prompt_tokens.astype(np.float64), out.output_tokens.astype(np.float64)
    first_tokens = bins.counts(out.first_s[answered]).astype(np.float64)
    return CellLine(
        bins.means(at_s, samples.running),
        bins.means(at_s, samples.inside),
        bins.means(at_s, samples.kv_mean),
        bins.most(at_s, samples.kv_most),
        np.diff(so_far, prepend=0.0),
        bins.counts(out.finished_s),
        bins.sums(out.arrived_s, prompt),
        bins.sums(out.arrived_s, output),
        bins.spread(out.placed_s, out.first_s, prompt),
        first_tokens + bins.spread(out.first_s, out.finished_s, output - 1),
        {state: mean_counts(replicas, state, bins) for state in STATES},
        sum((replica_seconds(replicas, state, until_s) for state in STATES), np.zeros(bins.count)) / 3600,
    )


def _waits(samples: Samples, bins: Bins) -> dict[tuple[str, WaitReason], Column]:
    index = bins.of(samples.at_s).tolist()
    seen: Counter[tuple[str, WaitReason, int]] = Counter()
    for number, waits in zip(index, samples.waits, strict=True):
        seen.update((lane, reason, number) for lane, reason in waits)
    size = np.maximum(bins.counts(samples.at_s), 1)
    shares: dict[tuple[str, WaitReason], Column] = {}
    for (lane, reason, number), count in seen.items():
        shares.setdefault((lane, reason), np.zeros(bins.count))[number] = count / size[number]
    return shares
