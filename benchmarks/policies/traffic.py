"""A scenario's requests and the expected load: streams that are drawn at changing rates, or recorded traffic that is
fitted to a small engine. A load of 1.0 keeps one full replica busy.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.policies.engines import PROBED, Serving, full_rate, full_rate_of
from planning.simulator.workload import Workload
from planning.tune.case import LoadCurve
from planning.workload.arrivals import FloatArray, RateCurve, renewal_arrivals
from planning.workload.changes import ChangeKind, TraceChange
from planning.workload.lengths import IntArray, LogNormal
from planning.workload.scaling import blockwise
from planning.workload.trace import Labels, Trace
from planning.workload.traces import read_requests

STEP_S = 5.0
"""Of the load over time."""
_SMOOTH_S = 600.0 / 12**0.5
"""As wide as a window of ten minutes, which is what ServeGen calls a rate."""
_BLOCK_TOKENS = 16
_CLASSES = ("interactive", "document")


@dataclass(frozen=True, slots=True)
class RequestKind:
    """`share`: of the requests; `slo_s`: of the first token; lengths stay within `max_prompt` and `max_output`."""

    traffic_class: str
    slo_s: float
    share: float
    prompt: LogNormal
    output: LogNormal
    max_prompt: int
    max_output: int


RequestMix = tuple[RequestKind, ...]
"""Kinds of requests, whose shares add up to 1."""
CHATS: RequestMix = (
    RequestKind("interactive", 2.0, 0.92, LogNormal(800, 0.7), LogNormal(320, 0.7), 2_400, 1_500),
    RequestKind("document", 10.0, 0.08, LogNormal(6_000, 0.4), LogNormal(250, 0.5), 16_000, 1_000),
)
"""Mostly chat with an SLO of 2 s, and some long documents with one of 10 s."""
QUESTIONS: RequestMix = (RequestKind("interactive", 5.0, 1.0, LogNormal(300, 0.5), LogNormal(120, 0.6), 1_000, 800),)
HEAVY: RequestMix = (
    RequestKind("interactive", 5.0, 1.0, LogNormal(16.0 * 300, 0.5), LogNormal(120, 0.6), 16_000, 800),
)
"""Questions with prompts sixteen times as long."""


def _lengths_of(mix: RequestMix, count: int, rng: np.random.Generator) -> tuple[IntArray, IntArray, IntArray]:
    """For each request the index of its kind, its prompt and its output tokens."""
    chosen = rng.choice(len(mix), size=count, p=[kind.share for kind in mix])
    prompt, output = np.ones(count, dtype=np.int64), np.ones(count, dtype=np.int64)
    for number, kind in enumerate(mix):
        own = chosen == number
        prompt[own] = np.minimum(kind.prompt.sample(int(own.sum()), rng), kind.max_prompt)
        output[own] = np.minimum(kind.output.sample(int(own.sum()), rng), kind.max_output)
    return chosen, prompt, output


@lru_cache
def rate_of(serving: Serving, mix: RequestMix) -> float:
    """Requests a second of such traffic that fill one replica. Measured once in a process."""
    _, prompt, output = _lengths_of(mix, PROBED, np.random.default_rng(7))
    return full_rate_of(serving, prompt, output)


Knots = Sequence[tuple[float, float]]
"""(second, load in replicas), joined by lines; the same second twice is a jump."""


@dataclass(frozen=True, slots=True)
class LoadStream:
    """Requests of `mix`. `shape` 1: Poisson, below 1: in bursts."""

    knots: Knots
    mix: RequestMix = CHATS
    shape: float = 1.0


def drawn(
    serving: Serving, streams: Sequence[LoadStream], until_s: float, rng: np.random.Generator
) -> tuple[Workload, LoadCurve]:
    """All requests until `until_s`, and the expected load."""
    times, kinds, prompts, outputs, loads = [], [], [], [], []
    names = sorted({kind.traffic_class for stream in streams for kind in stream.mix})
    classes: list[int] = []
    slos_s: list[float] = []
    for stream in streams:
        per_replica = rate_of(serving, stream.mix)
        rate = _rate_through(stream.knots, per_replica, until_s)
        loads.append(load_of(rate.expected, per_replica, until_s).replicas)
        arrived_s = renewal_arrivals(rate, "gamma", stream.shape, rng)
        kind, prompt, output = _lengths_of(stream.mix, len(arrived_s), rng)
        times.append(arrived_s)
        kinds.append(kind + len(classes))
        prompts.append(prompt)
        outputs.append(output)
        classes += [names.index(one.traffic_class) for one in stream.mix]
        slos_s += [one.slo_s for one in stream.mix]
    arrived_s = np.concatenate(times)
    order = np.argsort(arrived_s, kind="stable")
    kind = np.concatenate(kinds)[order]
    work = _workload(
        arrived_s[order],
        np.concatenate(prompts)[order],
        np.concatenate(outputs)[order],
        np.array(slos_s)[kind],
        Labels(tuple(names), np.array(classes, dtype=np.int32)[kind]),
    )
    return work, LoadCurve(np.sum(loads, axis=0), STEP_S)


def _workload(
    arrived_s: FloatArray, prompt: IntArray, output: IntArray, slo_s: NDArray[np.float64], classes: Labels
) -> Workload:
    count = len(arrived_s)
    return Workload(
        arrived_s, prompt, output, np.zeros(count, dtype=np.int64), slo_s, ("",) * count, classes, ((),) * count
    )


def _rate_through(knots: Knots, per_replica: float, until_s: float) -> RateCurve:
    """Requests a second over time, constant before the first knot and after the last."""
    at = [0.0, *(at_s for at_s, _ in knots), until_s]
    load = [knots[0][1], *(replicas for _, replicas in knots), knots[-1][1]]
    pieces = [(a, b, x, y) for a, b, x, y in zip(at, at[1:], load, load[1:], strict=False) if a < b <= until_s]
    edges = np.array([pieces[0][0], *(end for _, end, _, _ in pieces)])
    left, right = (per_replica * np.array([piece[side] for piece in pieces]) for side in (2, 3))
    before = np.concatenate([[0.0], np.cumsum((left + right) / 2 * np.diff(edges))])
    return RateCurve(edges, left, right, before)


def load_of(expected: Callable[[FloatArray], FloatArray], per_replica: float, until_s: float) -> LoadCurve:
    """`expected`: the mean number of requests until a second; `per_replica`: requests a second of a full replica."""
    edges = np.arange(0.0, until_s + STEP_S, STEP_S)
    return LoadCurve(np.diff(expected(np.minimum(edges, until_s))) / STEP_S / per_replica, STEP_S)


@lru_cache
def recorded(path: Path) -> Trace:
    """A recording or a traffic file, read once in a process. Raises TraceError."""
    return read_requests(path)


def fitted(trace: Trace, lengths: float, max_prompt: int, max_output: int) -> Trace:
    """Prompts `lengths` times as long, and what they share with them; both lengths within the engine's limits."""
    prompt = (trace.prompt_tokens * lengths).astype(np.int64)
    cut = int(((prompt > max_prompt) | (trace.output_tokens > max_output)).sum())
    trace = replace(
        trace, prompt_tokens=np.clip(prompt, 1, max_prompt), output_tokens=np.clip(trace.output_tokens, 1, max_output)
    ).changed(
        TraceChange(
            ChangeKind.SHRUNK, len(trace) if lengths < 1 else 0, len(trace), f"prompts multiplied by {lengths:g}"
        ),
        TraceChange(
            ChangeKind.CLIPPED, cut, len(trace), f"cut to {max_prompt:,} tokens of prompt and {max_output:,} of answer"
        ),
    )
    trace = blockwise(trace, _BLOCK_TOKENS, lengths)
    found = trace.prefixes
    if found is None:
        return trace
    whole = np.minimum(found.counts, trace.prompt_tokens // found.chunk_tokens).astype(np.int32)
    return replace(trace, prefixes=replace(found, counts=whole))


def workload_of(trace: Trace, document_tokens: int, slo_s: tuple[float, float]) -> Workload:
    """Prompts of at most `document_tokens` are interactive, longer ones are documents; `slo_s`: of each."""
    document = trace.prompt_tokens > document_tokens
    work = _workload(
        trace.arrived_s,
        trace.prompt_tokens,
        trace.output_tokens,
        np.where(document, slo_s[1], slo_s[0]),
        Labels(_CLASSES, document.astype(np.int32)),
    )
    work = replace(work, changes=trace.changes)
    found = trace.prefixes
    return work if found is None else replace(work, prefix=found, chunk_tokens=found.chunk_tokens)


def rate_of_recorded(serving: Serving, work: Workload) -> float:
    """Requests a second of such lengths that fill one replica: of any of them, or, where prompts share prefixes, of
    those in the middle, which come one after the other."""
    count = min(PROBED, len(work))
    if work.chunk_tokens:
        return full_rate(serving, work.tail((len(work) + count) // 2).head(count))
    chosen = np.random.default_rng(7).integers(0, len(work), PROBED)
    return full_rate_of(serving, work.prompt_tokens[chosen], work.output_tokens[chosen])


def load_of_recorded(serving: Serving, work: Workload, until_s: float) -> LoadCurve:
    """The expected load of a recording is unknown; this is its arrivals, smoothed over ten minutes by a Gaussian kernel
    that is corrected at the ends."""
    count = int(np.ceil(until_s / STEP_S))
    steps = np.minimum((work.arrived_s // STEP_S).astype(np.int64), count - 1)
    per_step = np.bincount(steps, minlength=count).astype(np.float64)
    reach = int(3 * _SMOOTH_S / STEP_S)
    kernel = np.exp(-0.5 * (np.arange(-reach, reach + 1) * STEP_S / _SMOOTH_S) ** 2)
    weight = np.convolve(np.ones(count), kernel, mode="full")[reach : reach + count]
    rate = np.convolve(per_step, kernel, mode="full")[reach : reach + count] / weight / STEP_S
    return LoadCurve(rate / rate_of_recorded(serving, work), STEP_S)
