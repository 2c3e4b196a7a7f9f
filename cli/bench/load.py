"""The load of one run as arrays: how long each request is and, in an open loop, when it is sent. Pure; `runner.py` plays it."""

from dataclasses import dataclass, replace

import numpy as np

from planning.workload.arrivals import FloatArray, arrivals_within, gamma_arrivals
from planning.workload.lengths import IntArray, Lengths
from planning.workload.scaling import scale_lengths, scale_to_fit
from planning.workload.trace import Trace

CYCLE = 8_192
"""Where the number of requests is not known before, this many lengths are drawn and used again and again."""


@dataclass(frozen=True, slots=True)
class Pace:
    """Either an open loop of `rate` requests a second (or, both None, at the trace's own times), or a closed loop of `concurrency` clients."""

    rate: float | None = None
    burstiness: float = 1.0
    concurrency: int | None = None


@dataclass(frozen=True, slots=True)
class Extent:
    """How much is sent: `requests`, or all that fit into `duration_s` seconds."""

    requests: int | None = None
    duration_s: float | None = None


@dataclass(frozen=True, slots=True)
class Load:
    """Lengths by request (used in a circle where more are sent), the times of an open loop, or the clients of a closed one."""

    prompt_tokens: IntArray
    output_tokens: IntArray
    arrivals_s: FloatArray | None
    concurrency: int | None
    requests: int | None
    duration_s: float | None

    def lengths(self, index: int) -> tuple[int, int]:
        """Prompt and output tokens of the request number `index`."""
        position = index % len(self.prompt_tokens)
        return int(self.prompt_tokens[position]), int(self.output_tokens[position])


def drawn_load(prompt: Lengths, output: Lengths, pace: Pace, extent: Extent, seed: int) -> Load:
    """A load whose lengths are drawn from distributions."""
    rng = np.random.default_rng([seed, 0])
    arrivals = _arrivals(pace, extent, rng)
    count = len(arrivals) if arrivals is not None else extent.requests or CYCLE
    return Load(prompt.sample(count, rng), output.sample(count, rng), arrivals, pace.concurrency, extent.requests, extent.duration_s)


def traced_load(trace: Trace, time_scale: float, pace: Pace, extent: Extent, seed: int) -> Load:
    """A load with the lengths of a trace: at its own times (stretched by `time_scale`) unless `pace` sets a rate or a concurrency."""
    requests = min(extent.requests, len(trace.arrived_s)) if extent.requests else len(trace.arrived_s)
    if pace.concurrency is not None:
        arrivals = None
    elif pace.rate is not None:
        arrivals = gamma_arrivals(pace.rate, pace.burstiness, requests, np.random.default_rng([seed, 0]))
    else:
        arrivals = trace.arrived_s[:requests] * time_scale
    if arrivals is not None and extent.duration_s is not None:
        arrivals = arrivals[arrivals < extent.duration_s]
    return Load(trace.prompt_tokens, trace.output_tokens, arrivals, pace.concurrency, requests, extent.duration_s)


def fitted(load: Load, length_scale: float, max_model_len: int | None) -> Load:
    """The load with its lengths scaled by `length_scale`, or by what makes the longest request fit `max_model_len`."""
    scale = length_scale if max_model_len is None else scale_to_fit(load.prompt_tokens, load.output_tokens, max_model_len)
    return replace(load, prompt_tokens=scale_lengths(load.prompt_tokens, scale), output_tokens=scale_lengths(load.output_tokens, scale))


def _arrivals(pace: Pace, extent: Extent, rng: np.random.Generator) -> FloatArray | None:
    if pace.rate is None:
        return None
    if extent.duration_s is not None:
        times = arrivals_within(pace.rate, pace.burstiness, extent.duration_s, rng)
        return times if extent.requests is None else times[: extent.requests]
    return gamma_arrivals(pace.rate, pace.burstiness, extent.requests or 0, rng)
