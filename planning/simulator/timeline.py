"""What a simulated run looked like over time, in bins: by lane, of the cell, and of its replicas. Pure; computed when
the run is over.

Requests count where they arrived (TTFT, in time, late), and what happened to them where it happened (rejected, expired,
promoted, tokens).
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from deployments.engine_model.sequence import ItlHistogram
from deployments.scheduling import WaitReason
from planning.simulator.bins import Bins, Column, Counts, bins_for
from planning.simulator.outcome import Life, SimulationOutcome
from planning.simulator.sampler import Samples


def replicas_by_state(lives: Sequence[Life], bins: Bins) -> dict[str, Column]:
    """The mean number of replicas in each bin that are ready, that start, and that drain. All of them hold their
    GPUs."""
    started, ready, drained, ended = (
        np.array([getattr(life, name) for life in lives], dtype=np.float64)
        for name in ("started_s", "ready_s", "drained_s", "ended_s")
    )
    serving = np.minimum(drained, ended)
    spans = {"ready": (ready, serving), "warming": (started, np.minimum(ready, serving)), "draining": (drained, ended)}
    return {
        state: bins.spread(np.where(begin < end, begin, np.nan), end, end - begin) / bins.width_s
        for state, (begin, end) in spans.items()
    }


@dataclass(frozen=True)
class LaneLine:
    """One lane, a value a bin. `missed`: those that arrived then and had no first token within their SLO, rejected and
    expired ones included.

    `ttft_sum_s` and `queued_sum_s` are over the answered ones among the missed: which part of their TTFT was the
    lane's.
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
    waiting_max: Counts
    rejected: Counts
    expired: Counts
    promoted: Counts
    """Promoted requests that were placed."""


@dataclass(frozen=True)
class CellLine:
    """The whole cell, a value a bin. Tokens are counts, not rates: offered ones came with the requests that arrived;
    the others are those that the engines prefilled and decoded, spread evenly over the time that each request's prefill
    and decode took."""

    running: Column
    inside: Column
    kv_mean: Column
    kv_max: Column
    preemptions: Column
    itl_p50_s: Column
    itl_p99_s: Column
    """Of the times between tokens that ended in the bin, over all engines; NaN where none did."""
    prefix_hits: Column
    """The share of the prompt tokens prefilled in the bin that prefix caches held; NaN where none were."""
    finished: Counts
    prompt_tokens_offered: Column
    output_tokens_offered: Column
    prompt_tokens: Column
    output_tokens: Column
    replicas: Mapping[str, Column]
    """By state (`replicas_by_state`)."""


@dataclass(frozen=True)
class Timeline:
    """A run in bins. `waits`: by lane and reason, the share of the bin in which the lane's head waited for that."""

    bins: Bins
    length_s: float
    lanes: tuple[LaneLine, ...]
    cell: CellLine
    waits: Mapping[tuple[str, WaitReason], Column]
    itl_in_time: Mapping[str, Column]
    """By class that aims at a time between tokens: of the answers that ended in the bin, the share that met it on
    average; NaN where none ended."""


def timeline(
    out: SimulationOutcome,
    slo_s: Column,
    lanes: Sequence[str],
    samples: Samples,
    bins: Bins | None = None,
    itl_in_time: Mapping[str, Column] | None = None,
) -> Timeline:
    """The run over time; `slo_s` is each request's TTFT SLO. `bins` default to some hundreds over the run.
    `itl_in_time`: by class, 1 for each answer within the class's time between tokens, 0 for others, NaN for none."""
    length_s = run_length_s(out)
    bins = bins or bins_for(length_s)
    lines = tuple(_lane(name, out, slo_s, bins, number) for number, name in enumerate(lanes))
    cell = _cell(out, samples, bins)
    met = {name: _means(out.finished_s, column, bins) for name, column in (itl_in_time or {}).items()}
    return Timeline(bins, length_s, lines, cell, _waits(samples, bins), met)


def _means(times_s: Column, values: Column, bins: Bins) -> Column:
    """The mean of the values in each bin, without those that are NaN; NaN where there is none."""
    count = bins.sums(times_s, np.where(np.isnan(values), np.nan, 1.0))
    means: Column = np.divide(bins.sums(times_s, values), count, out=np.full(bins.count, np.nan), where=count > 0)
    return means


def run_length_s(out: SimulationOutcome) -> float:
    """From the start to the last thing that happened."""
    return max(
        out.ended_s,
        *(float(np.nanmax(column)) for column in (out.arrived_s, out.finished_s) if not np.isnan(column).all()),
        0.0,
    )


def _lane(name: str, out: SimulationOutcome, slo_s: Column, bins: Bins, number: int) -> LaneLine:
    own = out.lane == number
    arrived, ttft, queued = out.arrived_s[own], out.ttft_s[own], out.queued_s[own]
    late = ttft > slo_s[own]
    p50, p95 = bins.quantiles(arrived, ttft, (0.5, 0.95))
    left = np.fmin(out.placed_s, out.expired_s)[own]
    waited = left > arrived
    waiting, maximum = bins.levels(arrived[waited], left[waited])
    return LaneLine(
        name,
        bins.counts(arrived),
        bins.counts(arrived[late | np.isnan(ttft)]),
        p50,
        p95,
        bins.sums(arrived[late], ttft[late]),
        bins.sums(arrived[late], queued[late]),
        waiting,
        maximum,
        bins.counts(out.arrived_s[own & out.rejected]),
        bins.counts(out.expired_s[own]),
        bins.counts(out.placed_s[own & out.promoted]),
    )


def _cell(out: SimulationOutcome, samples: Samples, bins: Bins) -> CellLine:
    at_s = samples.at_s
    so_far = bins.maximum(at_s, samples.preemptions)
    prompt, output = out.prompt_tokens.astype(np.float64), out.output_tokens.astype(np.float64)
    first_tokens = bins.counts(out.first_s).astype(np.float64)
    return CellLine(
        bins.means(at_s, samples.running),
        bins.means(at_s, samples.inside),
        bins.means(at_s, samples.kv_mean),
        bins.maximum(at_s, samples.kv_max),
        np.diff(so_far, prepend=0.0),
        *_itl(samples, bins),
        _prefix_hits(out, bins),
        bins.counts(out.finished_s),
        bins.sums(out.arrived_s, prompt),
        bins.sums(out.arrived_s, output),
        bins.spread(out.placed_s, out.first_s, prompt),
        first_tokens + bins.spread(out.first_s, out.finished_s, output - 1),
        replicas_by_state(out.lifetimes, bins),
    )


def _itl(samples: Samples, bins: Bins) -> tuple[Column, Column]:
    """The p50 and p99 of the times between tokens, from how many there were by the end of each bin."""
    last = np.searchsorted(samples.at_s, bins.edges_s[1:], side="right") - 1
    p50, p99 = np.full(bins.count, np.nan), np.full(bins.count, np.nan)
    before: dict[int, int] = {}
    for number, index in enumerate(last.tolist()):
        so_far = samples.gaps[index] if 0 <= index < len(samples.gaps) else before
        new = ItlHistogram()
        new.counts = {gap: count - before.get(gap, 0) for gap, count in so_far.items() if count > before.get(gap, 0)}
        p50[number], p99[number] = new.quantile(0.5), new.quantile(0.99)
        before = so_far
    return p50, p99


def _prefix_hits(out: SimulationOutcome, bins: Bins) -> Column:
    answered = ~np.isnan(out.first_s)
    prompt = bins.sums(out.first_s, np.where(answered, out.prompt_tokens, 0).astype(np.float64))
    cached = bins.sums(out.first_s, out.cached_tokens.astype(np.float64))
    hits: Column = np.divide(cached, prompt, out=np.full(bins.count, np.nan), where=prompt > 0)
    return hits


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
