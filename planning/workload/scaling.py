"""A trace made busier, quieter, shorter, or fitted to another model's context. Pure; random choices follow the seed.

Two ways to more load, which are not the same: `time_scaled` squeezes the clock, so bursts and the shape of the day grow
steeper; `load_scaled` lays copies over each other, as if there were more users, and leaves the clock alone.
"""

from dataclasses import replace

import numpy as np

from planning.workload.lengths import IntArray
from planning.workload.trace import Trace, joined

MAX_SHIFT_S = 600.0
"""A copy is shifted by at most so much: enough to part it from the original's bursts, too little to move the hours of
the day."""


def window(trace: Trace, from_s: float = 0.0, to_s: float | None = None) -> Trace:
    """The requests that arrive from `from_s` until before `to_s`, on the trace's clock; `from_s` becomes second 0."""
    until = len(trace) if to_s is None else int(np.searchsorted(trace.arrived_s, to_s))
    first = int(np.searchsorted(trace.arrived_s, from_s))
    kept = trace.take(np.arange(first, max(first, until)))
    return replace(kept, arrived_s=kept.arrived_s - from_s)


def first_requests(trace: Trace, limit: int) -> Trace:
    """The first `limit` requests."""
    return trace.take(np.arange(min(limit, len(trace))))


def time_scaled(trace: Trace, scale: float) -> Trace:
    """The same requests on a stretched clock: 0.5 replays twice as fast."""
    return replace(trace, arrived_s=trace.arrived_s * scale)


def load_scaled(trace: Trace, scale: float, seed: int = 0) -> Trace:
    """`scale` times the requests in the same time.

    Below 1 each request (each conversation, where there are sessions) is kept with that probability. Above 1 there are
    copies, the last one thinned: each moved in time by one random shift of at most `MAX_SHIFT_S` and half the trace,
    what falls off one end coming in at the other. A copy stands for other users: its sessions are others, and it shares
    no prefix with the original, which may understate a cache's hits but never invents any.
    """
    rng = np.random.default_rng([seed, 1])
    whole, rest = int(scale), scale - int(scale)
    copies = [_copy(trace, number, rng) for number in range(whole)]
    if rest > 0:
        copies.append(_thinned(_copy(trace, whole, rng), rest, rng))
    return copies[0] if len(copies) == 1 else joined(copies)


def _thinned(trace: Trace, share: float, rng: np.random.Generator) -> Trace:
    kept = rng.random(len(trace)) < share
    if trace.session is not None and len(trace):
        of_sessions = rng.random(int(trace.session.max()) + 2) < share
        kept = np.where(trace.session >= 0, of_sessions[trace.session], kept)
    return trace.take(np.flatnonzero(kept))


def _copy(trace: Trace, number: int, rng: np.random.Generator) -> Trace:
    """Copy 0 is the trace itself."""
    if number == 0 or not len(trace):
        return trace
    maximum = min(MAX_SHIFT_S, trace.span_s / 2)
    first, span = float(trace.arrived_s[0]), max(trace.span_s, 1e-9)
    moved = first + (trace.arrived_s - first + rng.uniform(-maximum, maximum)) % span
    session, prefixes = trace.session, trace.prefixes
    if session is not None:
        session = np.where(session >= 0, session + number * (int(session.max()) + 1), -1)
    if prefixes is not None:
        prefixes = prefixes.renamed(int(rng.integers(1 << 52, 1 << 53)) + (number << 53))
    return replace(trace, session=session, prefixes=prefixes).at(moved)


CONTEXT_MARGIN = 8
"""Tokens kept free in the context: a prompt that is made of text can miss its wanted length by a few."""


def scale_lengths(tokens: IntArray, scale: float) -> IntArray:
    """Lengths times `scale`, rounded down, at least 1."""
    scaled: IntArray = np.maximum(np.floor(tokens * scale), 1).astype(np.int64)
    return scaled


def scale_to_fit(prompt_tokens: IntArray, output_tokens: IntArray, max_model_len: int) -> float:
    """The factor, at most 1, by which all lengths shrink so that the longest request fits the context.

    One factor for all keeps the shape of the distribution, which clipping would not.
    """
    longest = int((prompt_tokens + output_tokens).max())
    return min(1.0, (max_model_len - CONTEXT_MARGIN) / longest)


def fitted(trace: Trace, max_model_len: int) -> Trace:
    """The trace with all lengths, the chunks of its prefixes too, shrunk by the one factor that fits it to the
    context."""
    scale = scale_to_fit(trace.prompt_tokens, trace.output_tokens, max_model_len)
    if scale == 1.0:
        return trace
    prefixes = trace.prefixes
    if prefixes is not None:  # rounded down, so that the chunks stay within the prompt
        prefixes = (
            replace(prefixes, chunk_tokens=int(prefixes.chunk_tokens * scale))
            if prefixes.chunk_tokens * scale >= 1
            else None
        )
    return replace(
        trace,
        prompt_tokens=scale_lengths(trace.prompt_tokens, scale),
        output_tokens=scale_lengths(trace.output_tokens, scale),
        max_tokens=None
        if trace.max_tokens is None
        else np.where(trace.max_tokens > 0, scale_lengths(trace.max_tokens, scale), 0),
        prefixes=prefixes,
    )
