"""What is sent: arrivals and lengths, from a recorded trace that is repeated for as long as it takes, or drawn. Pure."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from planning.workload.scaling import scale_lengths, scale_to_fit
from planning.workload.trace import Trace

_RATE = 5.4
"""Requests a second of the drawn load at scale 1: about that of Azure's conversation trace of 2023, whose lengths the figures below resemble."""
_PROMPT = (6.6, 1.1, 14_000)
_OUTPUT = (5.0, 0.8, 1_000)
"""Log-normal: mean and deviation of the logarithm, and the most tokens."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """Requests in the order of their arrival (seconds from the start), with their tokens."""

    arrived_s: NDArray[np.float64]
    prompt_tokens: NDArray[np.int64]
    output_tokens: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.arrived_s)


def traced(trace: Trace, duration_s: float, load_scale: float, max_model_len: int) -> Schedule:
    """`load_scale` times the trace's rate for so long, from its beginning again where it ends; lengths fitted to the context."""
    gap_s = trace.arrived_s[-1] / max(1, len(trace.arrived_s) - 1)
    period_s = float(trace.arrived_s[-1] + gap_s) / load_scale
    rounds = max(1, int(np.ceil(duration_s / period_s)))
    arrived = np.concatenate([trace.arrived_s / load_scale + number * period_s for number in range(rounds)])
    scale = scale_to_fit(trace.prompt_tokens, trace.output_tokens, max_model_len)
    prompt, output = (np.tile(scale_lengths(tokens, scale), rounds) for tokens in (trace.prompt_tokens, trace.output_tokens))
    kept = arrived < duration_s
    return Schedule(arrived[kept], prompt[kept], output[kept])


def drawn(duration_s: float, load_scale: float, max_model_len: int, seed: int) -> Schedule:
    """Poisson arrivals and log-normal lengths."""
    rng = np.random.default_rng(seed)
    count = max(1, int(rng.poisson(_RATE * load_scale * duration_s)))
    prompt, output = (
        np.clip(rng.lognormal(mean, deviation, count), 1, min(most, max_model_len // 2)).astype(np.int64)
        for mean, deviation, most in (_PROMPT, _OUTPUT)
    )
    return Schedule(np.sort(rng.uniform(0, duration_s, count)), prompt, output)
