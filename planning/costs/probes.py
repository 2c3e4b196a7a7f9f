"""What a calibration sends: closed loops of doubling concurrency, and lengths of two kinds in turns.

Half of each level has lengths spread evenly over the orders of magnitude up to the context, so that KV caches are seen
from empty to full. The other half has the lengths of the traffic that is expected (a trace), or else short ones:
without them many sequences would always come with a full KV cache, and the fit could not tell what is due to which.
"""

from collections.abc import Iterator, Sequence

import numpy as np

from planning.workload.lengths import IntArray

MIN_TOKENS = 4
MAX_OUTPUT, MAX_OUTPUT_SHARE = 256, 0.25
"""Tokens, and a share of the context: longer answers would leave little time for prompts, and a step knows nothing of
them but the KV cache."""
SHORT_PROMPT = 256

Lengths = tuple[IntArray, IntArray]
"""Tokens of prompts and of answers."""


def concurrencies(replicas: int, max_num_seqs: int) -> Iterator[int]:
    """1, 2, 4, ... and what fills all replicas."""
    full, clients = replicas * max_num_seqs, 1
    while clients < full:
        yield clients
        clients *= 2
    yield full


def coarse_to_fine(levels: Sequence[int]) -> list[int]:
    """The same levels, the last one first, then the first one, then those halfway between: whatever comes to an end
    early has seen the whole range."""
    order, gaps = [levels[-1]], [(0, len(levels) - 1)]
    if len(levels) > 1:
        order.append(levels[0])
    for low, high in gaps:  # grows meanwhile
        if high - low > 1:
            middle = (low + high) // 2
            order.append(levels[middle])
            gaps += [(low, middle), (middle, high)]
    return order


def spread_lengths(max_model_len: int, max_prompt: int, count: int, seed: int) -> Lengths:
    """Log-uniform and independent, prompts of at most `max_prompt` tokens, together within the context."""
    rng = np.random.default_rng(seed)
    output = _log_uniform(max(MIN_TOKENS + 1, min(MAX_OUTPUT, MAX_OUTPUT_SHARE * max_model_len)), count, rng)
    room = max_model_len - int(output.max()) - 1
    return _log_uniform(max(MIN_TOKENS + 1, min(max_prompt, room)), count, rng), output


def traffic_lengths(prompt_tokens: IntArray, output_tokens: IntArray, count: int, seed: int) -> Lengths:
    """Drawn from those of a trace, each prompt with its own answer."""
    chosen = np.random.default_rng(seed).integers(0, len(prompt_tokens), count)
    return prompt_tokens[chosen], output_tokens[chosen]


def _log_uniform(high: float, count: int, rng: np.random.Generator) -> IntArray:
    drawn: IntArray = np.exp(rng.uniform(np.log(MIN_TOKENS), np.log(high), count)).astype(np.int64)
    return drawn
