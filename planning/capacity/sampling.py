"""Runs drawn from a sample of requests: random arrivals at a rate, the same requests and gaps for each seed. Pure."""

from collections import Counter
from dataclasses import replace

import numpy as np

from planning.simulator.workload import Workload

FIRST, LAST = 0.2, 0.95
"""Of a run's arrivals, those between are judged."""


def poisson(sample: Workload, rate: float, count: int, seed: int) -> Workload:
    """`count` requests of the sample at random times in `count / rate` seconds.

    Without prefixes they are drawn evenly over the lengths, in random order, so that every run brings the sample's mean
    work. With prefixes they are taken in their order from a random place on, and again from the beginning when all were
    taken; then only what several prompts share is found in a cache.
    """
    rng = np.random.default_rng([seed, count])
    arrived_s = np.cumsum(rng.exponential(1.0, count))
    arrived_s *= count / rate / arrived_s[-1]
    if not sample.chunk_tokens:
        order = np.argsort(sample.prompt_tokens + 4 * sample.output_tokens, kind="stable")
        evenly = ((rng.random() + np.arange(count)) * (len(sample) / count)).astype(np.int64)
        return sample.take(order[rng.permutation(evenly)], arrived_s)
    places = rng.integers(0, len(sample)) + np.arange(count)
    chosen = sample.take(places % len(sample), arrived_s)
    rounds = (places // len(sample)).tolist()
    shared = _shared(sample)
    prefix = tuple(
        chosen.prefix[number]
        if round_ == rounds[0]
        else tuple(hashed for hashed in chosen.prefix[number] if hashed in shared)
        for number, round_ in enumerate(rounds)
    )
    session = chosen.session
    if session is not None:
        session = np.where(session < 0, -1, session + np.array(rounds) * (int(session.max()) + 1))
    return replace(chosen, prefix=prefix, session=session)


def judged_part(arrivals: int) -> slice:
    """The requests of a run that are judged, by their number."""
    return slice(int(FIRST * arrivals), max(int(LAST * arrivals), int(FIRST * arrivals) + 1))


def _shared(sample: Workload) -> set[int]:
    """The hashes that several prompts have."""
    seen: Counter[int] = Counter()
    for number in range(len(sample)):
        seen.update(sample.prefix[number])
    return {hashed for hashed, count in seen.items() if count > 1}
