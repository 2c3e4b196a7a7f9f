"""Recorded traffic as a run's requests: its files and halves, lengths fitted to a small engine, classes by length.

What prompts share shrinks with them, in chunks of whole KV blocks. The changes are noted in the traffic.
"""

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import numpy as np

from planning.gauntlet.scenario import Draw
from planning.gauntlet.serving import LoadCurve, Serving, full_rate, smoothed
from planning.simulator.workload import Workload, plain_workload
from planning.workload.arrivals import FloatArray
from planning.workload.changes import ChangeKind, TraceChange
from planning.workload.scaling import blockwise, window
from planning.workload.trace import Labels, Trace, TraceError, joined
from planning.workload.traces import read_trace

CLASSES = ("interactive", "document")
_PROBED = 1_200
_BLOCK_TOKENS = 16
_SMOOTH_S = 600.0 / 12**0.5
"""As wide as a window of ten minutes, which is what ServeGen calls a rate."""


class TracesError(ValueError):
    """Recorded traffic cannot be run; the message names the file."""


class NoTracesError(TracesError):
    """A scenario needs recorded traffic, and there is none."""


def trace_files(folder: Path | None, names: Iterable[str]) -> tuple[Path, ...]:
    """The files of these names in the folder of traces; a name without its ending matches all that begin with it.
    Raises NoTracesError."""
    files: list[Path] = []
    for name in names:
        found = (
            []
            if folder is None
            else sorted(file for file in (folder / name, *folder.glob(f"{name}.*")) if file.is_file())
        )
        if not found:
            raise NoTracesError(f"{name}: not in {folder or 'a folder, because none is given'}")
        files += found
    return tuple(files)


def trace_file(draw: Draw, name: str) -> Path:
    """A file of the folder of traces. Raises NoTracesError."""
    return trace_files(draw.traces, (name,))[0]


@lru_cache
def recorded(path: Path) -> Trace:
    """A recording, read once in a process. Raises TracesError."""
    try:
        return read_trace(path)
    except TraceError as error:
        raise TracesError(str(error)) from error


def half(trace: Trace, first: bool) -> tuple[Trace, float]:
    """One half of a recording and its duration: policies are tuned on the first, judged on the second."""
    middle_s = trace.span_s / 2
    return (window(trace, 0.0, middle_s) if first else window(trace, middle_s, trace.span_s)), middle_s


def kept(trace: Trace, share: Callable[[FloatArray], FloatArray] | float, rng: np.random.Generator) -> Trace:
    """A sample: each request with the probability of its time."""
    likely = share(trace.arrived_s) if callable(share) else share
    sample = trace.take(np.flatnonzero(rng.random(len(trace)) < likely))
    left_out = TraceChange(
        ChangeKind.THINNED, len(trace) - len(sample), len(trace), "left out at random: a run is a sample"
    )
    return sample.changed(left_out)


def end_to_end(trace: Trace, length_s: float, times: int, shift_s: float) -> Trace:
    """The same stretch several times, each time rotated by `shift_s`, so that its end and its beginning meet inside. A
    repetition shares no prefix with the others."""
    turned = trace.at((trace.arrived_s + shift_s) % length_s)
    parts = []
    for number in range(times):
        prefixes = None if turned.prefixes is None else turned.prefixes.renamed(number << 60)
        parts.append(replace(turned, arrived_s=turned.arrived_s + number * length_s, prefixes=prefixes))
    whole = joined(parts)
    words = f"added: the recording {times} times end to end, without shared prefixes between the repetitions"
    return whole.changed(TraceChange(ChangeKind.COPIED, len(whole) - len(trace), len(trace), words))


def fitted(trace: Trace, lengths: float, max_prompt: int, max_output: int) -> Trace:
    """Prompts `lengths` times as long; both lengths within the engine's limits."""
    prompt = (trace.prompt_tokens * lengths).astype(np.int64)
    cut = int(((prompt > max_prompt) | (trace.output_tokens > max_output)).sum())
    shrunk = replace(
        trace,
        prompt_tokens=np.clip(prompt, 1, max_prompt),
        output_tokens=np.clip(trace.output_tokens, 1, max_output),
    ).changed(
        TraceChange(
            ChangeKind.SHRUNK, len(trace) if lengths < 1 else 0, len(trace), f"prompts multiplied by {lengths:g}"
        ),
        TraceChange(
            ChangeKind.CLIPPED, cut, len(trace), f"cut to {max_prompt:,} tokens of prompt and {max_output:,} of answer"
        ),
    )
    shrunk = blockwise(shrunk, _BLOCK_TOKENS, lengths)
    found = shrunk.prefixes
    if found is None:
        return shrunk
    whole = np.minimum(found.counts, shrunk.prompt_tokens // found.chunk_tokens).astype(np.int32)
    return replace(shrunk, prefixes=replace(found, counts=whole))


def workload_of(trace: Trace, document_tokens: int, slo_s: tuple[float, float]) -> Workload:
    """Prompts of at most `document_tokens` are interactive, longer ones are documents; each class has its SLO."""
    document = (trace.prompt_tokens > document_tokens).astype(np.int32)
    count = len(trace)
    return Workload(
        trace.arrived_s,
        trace.prompt_tokens,
        trace.output_tokens,
        np.zeros(count, dtype=np.int64),
        np.array(slo_s)[document],
        ("",) * count,
        Labels(CLASSES, document),
        ((),) * count if trace.prefixes is None else trace.prefixes,
        0 if trace.prefixes is None else trace.prefixes.chunk_tokens,
        trace.changes,
    )


def rate_of_recorded(serving: Serving, work: Workload) -> float:
    """Requests a second of such lengths that fill one replica: of any of them, or, where prompts share prefixes, of
    those in the middle, which come one after the other."""
    count = min(_PROBED, len(work))
    if work.chunk_tokens:
        return full_rate(serving, work.tail((len(work) + count) // 2).head(count))
    chosen = np.random.default_rng(7).integers(0, len(work), _PROBED)
    probe = plain_workload(np.zeros(_PROBED), work.prompt_tokens[chosen], work.output_tokens[chosen], bounded=False)
    return full_rate(serving, probe)


def load_of_recorded(serving: Serving, work: Workload, until_s: float) -> LoadCurve:
    """The expected load of a recording is unknown; this is its arrivals, smoothed over ten minutes."""
    return smoothed(work.arrived_s, rate_of_recorded(serving, work), until_s, _SMOOTH_S)
