"""Fitting recorded lengths to another model's context. Pure."""

from dataclasses import replace

import numpy as np

from planning.workload.lengths import IntArray
from planning.workload.trace import Trace

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
    """The trace with all lengths, the chunks of its prefixes too, shrunk by the one factor that fits it to the context."""
    scale = scale_to_fit(trace.prompt_tokens, trace.output_tokens, max_model_len)
    if scale == 1.0:
        return trace
    prefixes = trace.prefixes
    if prefixes is not None:  # rounded down, so that the chunks stay within the prompt
        prefixes = replace(prefixes, chunk_tokens=int(prefixes.chunk_tokens * scale)) if prefixes.chunk_tokens * scale >= 1 else None
    return replace(
        trace,
        prompt_tokens=scale_lengths(trace.prompt_tokens, scale),
        output_tokens=scale_lengths(trace.output_tokens, scale),
        max_tokens=None if trace.max_tokens is None else np.where(trace.max_tokens > 0, scale_lengths(trace.max_tokens, scale), 0),
        prefixes=prefixes,
    )
