"""Lengths fitted to a context: they fit, keep their order, and prefixes stay within their prompts."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from planning.workload.fitting import fitted, scale_lengths, scale_to_fit
from planning.workload.prefixes import Prefixes
from planning.workload.trace import Trace

pairs_of_lengths = st.lists(st.tuples(st.integers(1, 200_000), st.integers(1, 50_000)), min_size=1, max_size=50)


@given(pairs=pairs_of_lengths, max_model_len=st.integers(16, 300_000))
def test_scaled_lengths_fit_the_context_and_keep_their_order(pairs: list[tuple[int, int]], max_model_len: int) -> None:
    prompt, output = (np.array(column, dtype=np.int64) for column in zip(*pairs, strict=True))
    scale = scale_to_fit(prompt, output, max_model_len)
    scaled_prompt, scaled_output = scale_lengths(prompt, scale), scale_lengths(output, scale)
    assert (scaled_prompt + scaled_output).max() <= max_model_len
    assert min(scaled_prompt.min(), scaled_output.min()) >= 1
    order = np.argsort(prompt, kind="stable")
    assert (np.diff(scaled_prompt[order]) >= 0).all()


@given(pairs=pairs_of_lengths, max_model_len=st.integers(16, 300_000), chunk=st.integers(1, 512))
def test_chunks_shrink_with_their_prompts(pairs: list[tuple[int, int]], max_model_len: int, chunk: int) -> None:
    prompt, output = (np.array(column, dtype=np.int64) for column in zip(*pairs, strict=True))
    counts = (prompt // chunk).astype(np.int32)
    prefixes = Prefixes(chunk, np.arange(int(counts.max())), np.zeros(len(prompt), dtype=np.int64), counts)
    whole = fitted(Trace(np.zeros(len(prompt)), prompt, output, prefixes=prefixes), max_model_len)
    assert (whole.prompt_tokens + whole.output_tokens).max() <= max_model_len
    if whole.prefixes is not None:
        assert whole.prefixes.chunk_tokens >= 1
        assert (whole.prefixes.counts * whole.prefixes.chunk_tokens <= whole.prompt_tokens).all()
