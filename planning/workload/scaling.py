"""A trace made busier, quieter, shorter, or fitted to another model's context. Pure; random choices follow the seed.

Two ways to more load, which are not the same: `time_scaled` squeezes the clock, so bursts and the shape of the day grow
steeper; `load_scaled` lays copies over each other, as if there were more users, and leaves the clock alone.

Prefixes of prompts that shrink are cut into chunks of whole KV blocks. A prefix of n chunks of c tokens that shrinks by
s covers n c s tokens. In new chunks of C tokens, a multiple of a block, it has m = floor(n c s / C) of them, and loses
less than one at its end. The new chunk k ends within the old one number i = ceil(k C / (c s)), whose hash names
everything up to there; so two prompts share the new chunk k where they shared the old chunk i. C is the largest
multiple of a block in c s, or one block.
"""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from planning.workload.changes import ChangeKind, TraceChange
from planning.workload.lengths import IntArray
from planning.workload.trace import LARGEST_HASH, Prefixes, Trace, joined

MAX_SHIFT_S = 600.0
"""A copy is shifted by at most so much: enough to part it from the original's bursts, too little to move the hours of
the day."""


def window(trace: Trace, from_s: float = 0.0, to_s: float | None = None) -> Trace:
    """The requests that arrive from `from_s` until before `to_s`, on the trace's clock; `from_s` becomes second 0."""
    until = len(trace) if to_s is None else int(np.searchsorted(trace.arrived_s, to_s))
    first = int(np.searchsorted(trace.arrived_s, from_s))
    kept = trace.take(np.arange(first, max(first, until)))
    end = "the end" if to_s is None else f"{to_s:g} s"
    left_out = _left_out(ChangeKind.OUTSIDE_WINDOW, trace, kept, f"left out: not between {from_s:g} s and {end}")
    return replace(kept, arrived_s=kept.arrived_s - from_s).changed(left_out)


def first_requests(trace: Trace, limit: int) -> Trace:
    """The first `limit` requests."""
    kept = trace.take(np.arange(min(limit, len(trace))))
    return kept.changed(_left_out(ChangeKind.BEYOND_LIMIT, trace, kept, f"left out: after the first {limit:,}"))


def _left_out(kind: ChangeKind, before: Trace, after: Trace, what: str) -> TraceChange:
    return TraceChange(kind, len(before) - len(after), len(before), what)


def time_scaled(trace: Trace, scale: float) -> Trace:
    """The same requests on a stretched clock: 0.5 replays twice as fast."""
    moved = 0 if scale == 1.0 else len(trace)
    stretched = TraceChange(ChangeKind.TIME_SCALED, moved, len(trace), f"arrival times multiplied by {scale:g}")
    return replace(trace, arrived_s=trace.arrived_s * scale).changed(stretched)


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
    scaled = copies[0] if len(copies) == 1 else joined(copies)
    if scale < 1:
        return scaled.changed(
            _left_out(ChangeKind.THINNED, trace, scaled, f"left out at random, for {scale:g} x the load")
        )
    added = f"added for {scale:g} x the load: copies, shifted in time, that share no prefix and no session with others"
    return scaled.changed(TraceChange(ChangeKind.COPIED, len(scaled) - len(trace), len(trace), added))


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


def fitted(trace: Trace, max_model_len: int, block_tokens: int = 16) -> Trace:
    """The trace with all lengths shrunk by the one factor that fits it to the context. What prompts share shrinks with
    them, in chunks of whole blocks of `block_tokens`."""
    scale = scale_to_fit(trace.prompt_tokens, trace.output_tokens, max_model_len)
    if scale == 1.0:
        return trace
    shrunk = replace(
        trace,
        prompt_tokens=scale_lengths(trace.prompt_tokens, scale),
        output_tokens=scale_lengths(trace.output_tokens, scale),
        max_tokens=None
        if trace.max_tokens is None
        else np.where(trace.max_tokens > 0, scale_lengths(trace.max_tokens, scale), 0),
    )
    words = f"all lengths multiplied by {scale:.4g}, so that the longest fits {max_model_len:,} tokens (--fit-lengths)"
    shrunk = shrunk.changed(TraceChange(ChangeKind.SHRUNK, len(trace), len(trace), words))
    return blockwise(shrunk, block_tokens, scale)


def blockwise(trace: Trace, block_tokens: int, scale: float = 1.0) -> Trace:
    """The trace with its prefixes in chunks of whole blocks, so that a cache of such blocks can hold them. `scale`: the
    factor by which its lengths have shrunk."""
    if trace.prefixes is None or (scale == 1.0 and trace.prefixes.chunk_tokens % block_tokens == 0):
        return trace
    cut = cut_to_blocks(trace.prefixes, block_tokens, scale)
    before = scale * trace.prefixes.chunk_tokens * float(trace.prefixes.counts.sum())
    kept = cut.chunk_tokens * float(cut.counts.sum()) / before if before else 1.0
    words = (
        f"prefixes in chunks of {cut.chunk_tokens} tokens (were {trace.prefixes.chunk_tokens}); {100 * kept:.1f} % of "
        "their tokens can still be found in a cache"
    )
    touched = int((trace.prefixes.counts > 0).sum())
    return replace(trace, prefixes=cut).changed(TraceChange(ChangeKind.PREFIXES_CUT, touched, len(trace), words))


_ROUNDING = 1e-9
"""Relative: a product that is a whole number by its factors is not to lose a chunk."""


def cut_to_blocks(prefixes: Prefixes, block_tokens: int, scale: float = 1.0) -> Prefixes:
    """The prefixes of prompts that were multiplied by `scale` (at most 1), in chunks of whole blocks."""
    covered = prefixes.chunk_tokens * scale * (1 + _ROUNDING)
    chunk_tokens = max(1, int(covered) // block_tokens) * block_tokens
    begins, slice_of = np.unique(prefixes.starts, return_inverse=True)
    counts = np.floor(prefixes.counts * covered / chunk_tokens).astype(np.int64)
    longest = np.zeros(len(begins), dtype=np.int64)
    np.maximum.at(longest, slice_of, counts)
    placed = np.cumsum(longest) - longest
    number = np.arange(int(longest.sum())) - np.repeat(placed, longest) + 1
    old = np.ceil(number * chunk_tokens / covered - _ROUNDING).astype(np.int64)
    hashes = _named(prefixes.hashes[np.repeat(begins, longest) + np.maximum(old, 1) - 1], number)
    return Prefixes(chunk_tokens, hashes, placed[slice_of], counts.astype(np.int32))


def _named(hashes: IntArray, number: NDArray[np.int64]) -> IntArray:
    """One hash of a hash and a number (the mixing steps of SplitMix64; Steele, Lea, Flood, OOPSLA 2014)."""
    mixed = hashes.astype(np.uint64) + number.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    named: IntArray = ((mixed ^ (mixed >> np.uint64(31))) & np.uint64(LARGEST_HASH)).astype(np.int64)
    return named


@dataclass(frozen=True, slots=True)
class LengthLimits:
    """What a request's prompt and answer must fit: the model's `context`, and the engine's KV cache (None: not known),
    in blocks of `block_tokens`. `fit`: shrink all lengths until they do, instead of rejecting what does not."""

    context: int
    kv_tokens: int | None = None
    block_tokens: int = 16
    fit: bool = False

    @property
    def holds(self) -> int:
        """The longest request that fits both."""
        return self.context if self.kv_tokens is None else min(self.context, self.kv_tokens)


def within(trace: Trace, limits: LengthLimits) -> Trace:
    """The requests that fit, possibly none; with `fit` all of them, shrunk until they do."""
    context, holds = limits.context, limits.holds
    if limits.fit:
        return fitted(trace, holds, limits.block_tokens)
    output = trace.output_tokens if trace.max_tokens is None else np.maximum(trace.output_tokens, trace.max_tokens)
    tokens, count = trace.prompt_tokens + output, len(trace)
    if not (tokens > holds).any():
        return trace
    rejected = "rejected: prompt and answer are longer than"
    longest = f"(the longest: {int(tokens.max()):,})"
    too_long, too_large = tokens > context, (tokens <= context) & (tokens > holds)
    return trace.take(np.flatnonzero(tokens <= holds)).changed(
        TraceChange(
            ChangeKind.CONTEXT_LENGTH_EXCEEDED,
            int(too_long.sum()),
            count,
            f"{rejected} the model's context of {context:,} tokens {longest}; --fit-lengths shrinks them instead",
        ),
        TraceChange(
            ChangeKind.KV_CACHE_EXCEEDED,
            int(too_large.sum()),
            count,
            f"{rejected} the engine's KV cache of {holds:,} tokens; --fit-lengths shrinks them instead",
        ),
    )
