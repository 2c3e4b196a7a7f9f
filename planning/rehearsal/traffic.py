"""The traffic of a rehearsal: a trace's lengths, fitted to the model, at a rate of choice with the trace's own pattern of arrivals. Pure."""

import numpy as np

from planning.simulator.workload import Workload, plain_workload
from planning.workload.fitting import scale_lengths, scale_to_fit
from planning.workload.trace import Trace


def rehearsed(trace: Trace, max_model_len: int, length_scale: float, ttft_slo_s: float) -> Workload:
    """The whole trace with lengths times `length_scale`, or what makes the longest fit the context where that is less. Clients bound their output."""
    scale = min(length_scale, scale_to_fit(trace.prompt_tokens, trace.output_tokens, max_model_len))
    prompt, output = scale_lengths(trace.prompt_tokens, scale), scale_lengths(trace.output_tokens, scale)
    return plain_workload(trace.arrived_s, prompt, output, ttft_slo_s)


def at_rate(work: Workload, rate: float, seconds: float) -> Workload:
    """The first `rate * seconds` requests, their times stretched to come at `rate` on average. Raises ValueError where there are too few."""
    count = round(rate * seconds)
    if count > len(work):
        raise ValueError(f"{rate:.1f} requests/s for {seconds:g} s are {count} requests; the trace has {len(work)}")
    if count < 20:
        raise ValueError(f"{rate:.2f} requests/s for {seconds:g} s are {count} requests; needed: at least 20")
    head = work.head(count)
    span = float(head.arrived_s[-1] - head.arrived_s[0])
    return head.at((head.arrived_s - head.arrived_s[0]) * (count / rate / span) if span else np.arange(count) / rate)
