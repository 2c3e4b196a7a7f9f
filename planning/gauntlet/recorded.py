"""Recorded traffic as a run's requests: its files and halves, lengths fitted to a small engine, classes by length.

Shared prefixes of prompts are left out, so a recording of agents needs more capacity here than with a prefix cache.
"""

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import numpy as np

from planning.gauntlet.scenario import Draw
from planning.gauntlet.serving import LoadCurve, Serving, full_rate, smoothed
from planning.simulator.workload import Workload
from planning.workload.arrivals import FloatArray
from planning.workload.scaling import window
from planning.workload.trace import Labels, Trace, TraceError, joined
from planning.workload.traces import read_trace

CLASSES = ("interactive", "document")
_PROBED = 1_200
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
    """A recording without prefixes, read once in a process. Raises TracesError."""
    try:
        return replace(read_trace(path), prefixes=None)
    except TraceError as error:
        raise TracesError(str(error)) from error


def half(trace: Trace, first: bool) -> tuple[Trace, float]:
    """One half of a recording and its duration: policies are tuned on the first, judged on the second."""
    middle_s = trace.span_s / 2
    return (window(trace, 0.0, middle_s) if first else window(trace, middle_s, trace.span_s)), middle_s


def kept(trace: Trace, share: Callable[[FloatArray], FloatArray] | float, rng: np.random.Generator) -> Trace:
    """A sample: each request with the probability of its time."""
    likely = share(trace.arrived_s) if callable(share) else share
    return trace.take(np.flatnonzero(rng.random(len(trace)) < likely))


def end_to_end(trace: Trace, length_s: float, times: int, shift_s: float) -> Trace:
    """The same stretch several times, each time rotated by `shift_s`, so that its end and its beginning meet inside."""
    turned = trace.at((trace.arrived_s + shift_s) % length_s)
    return joined([replace(turned, arrived_s=turned.arrived_s + number * length_s) for number in range(times)])


def fitted(trace: Trace, lengths: float, max_prompt: int, max_output: int) -> Trace:
    """Prompts `lengths` times as long; both lengths within the engine's limits."""
    prompt = np.clip((trace.prompt_tokens * lengths).astype(np.int64), 1, max_prompt)
    return replace(trace, prompt_tokens=prompt, output_tokens=np.clip(trace.output_tokens, 1, max_output))


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
        ((),) * count,
    )


def rate_of_recorded(serving: Serving, work: Workload) -> float:
    """Requests a second of such lengths that fill one replica."""
    chosen = np.random.default_rng(7).integers(0, len(work), _PROBED)
    return full_rate(serving, work.prompt_tokens[chosen], work.output_tokens[chosen])


def load_of_recorded(serving: Serving, work: Workload, until_s: float) -> LoadCurve:
    """The expected load of a recording is unknown; this is its arrivals, smoothed over ten minutes."""
    return smoothed(work.arrived_s, rate_of_recorded(serving, work), until_s, _SMOOTH_S)
