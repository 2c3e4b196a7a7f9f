"""When requests are sent in an open loop: Gamma-distributed gaps, of which Poisson is the case `burstiness` 1.

Pure. A gap's mean is 1 / rate and its squared coefficient of variation 1 / burstiness: below 1 requests come in bursts, above 1 they come more
evenly. It is the meaning that `vllm bench serve` gives the word, so that settings carry over.
"""

import math

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]


def gamma_arrivals(rate: float, burstiness: float, count: int, rng: np.random.Generator) -> FloatArray:
    """The times, in seconds after the start and in order, at which `count` requests are sent."""
    gaps = rng.gamma(shape=burstiness, scale=1 / (rate * burstiness), size=count)
    return np.cumsum(gaps)


def arrivals_within(rate: float, burstiness: float, duration_s: float, rng: np.random.Generator) -> FloatArray:
    """The times of all requests that are sent in the first `duration_s` seconds; at least one."""
    block = max(16, math.ceil(rate * duration_s))
    times = gamma_arrivals(rate, burstiness, block, rng)
    while times[-1] < duration_s:
        times = np.concatenate([times, times[-1] + gamma_arrivals(rate, burstiness, block, rng)])
    within: FloatArray = times[times < duration_s]
    return within if len(within) else np.zeros(1)
