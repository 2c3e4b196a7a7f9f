"""Windows and scales: how many requests remain, when, and what they share; fitted lengths keep their order, prefixes
stay within prompts."""

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from planning.workload.changes import ChangeKind
from planning.workload.scaling import (
    LengthLimits,
    blockwise,
    cut_to_blocks,
    first_requests,
    fitted,
    load_scaled,
    scale_lengths,
    scale_to_fit,
    time_scaled,
    window,
    within,
)
from planning.workload.trace import Labels, Prefixes, Trace


def built(gaps: list[float], talks: int) -> Trace:
    count = len(gaps)
    codes = np.arange(count) % 3
    return Trace(
        np.cumsum(gaps) - gaps[0],
        np.arange(1, count + 1) * 10,
        np.full(count, 5),
        tenant=Labels(("a", "b", ""), codes.astype(np.int32)),
        session=np.arange(count) % talks - 1,
        prefixes=Prefixes(
            10, np.arange(count), np.zeros(count, dtype=np.int64), np.arange(1, count + 1, dtype=np.int32)
        ),
    )


traces = st.builds(built, st.lists(st.floats(0, 100), min_size=1, max_size=60), st.integers(1, 6))


def hashes(trace: Trace) -> list[tuple[int, ...]]:
    assert trace.prefixes is not None
    return [trace.prefixes[index] for index in range(len(trace))]


@pytest.mark.whole
@given(traces, st.floats(0, 3_000), st.floats(0, 3_000))
def test_a_window_holds_what_arrives_in_it(trace: Trace, from_s: float, length_s: float) -> None:
    cut = window(trace, from_s, from_s + length_s)
    mine = (trace.arrived_s >= from_s) & (trace.arrived_s < from_s + length_s)
    assert cut.prompt_tokens.tolist() == trace.prompt_tokens[mine].tolist()
    assert ((cut.arrived_s >= 0) & (cut.arrived_s <= length_s)).all()


@pytest.mark.whole
@given(traces, st.sampled_from([0.3, 1.0, 1.6, 2.0, 5.0]), st.integers(0, 9))
def test_more_load_is_copies_of_other_users_in_the_same_time(trace: Trace, scale: float, seed: int) -> None:
    scaled, again = (load_scaled(trace, scale, seed) for _ in range(2))
    assert (scaled.arrived_s == again.arrived_s).all()
    whole = int(scale)
    assert whole * len(trace) <= len(scaled) <= (whole if scale == whole else whole + 1) * len(trace)
    assert (np.diff(scaled.arrived_s) >= 0).all()
    if len(scaled):
        assert scaled.arrived_s[0] >= 0
        assert scaled.arrived_s[-1] <= max(trace.span_s, trace.arrived_s[-1]) + 1e-9
    kept, times = np.unique(scaled.prompt_tokens, return_counts=True)
    assert set(kept) <= set(trace.prompt_tokens)
    assert times.max(initial=0) <= np.ceil(scale)
    if scale == 2.0:  # every request twice, under two names
        assert len(set(hashes(scaled))) == 2 * len(trace)
        assert scaled.session is not None
        assert trace.session is not None
        assert len(np.unique(scaled.session[scaled.session >= 0])) == 2 * len(
            np.unique(trace.session[trace.session >= 0])
        )
    if scale == 1.0:
        assert hashes(scaled) == hashes(trace)


def test_thinning_keeps_the_share_and_whole_conversations() -> None:
    trace = built([1.0] * 30_000, 3_000)
    kept = load_scaled(trace, 0.4)
    assert abs(len(kept) / len(trace) - 0.4) < 0.05
    assert kept.session is not None
    sizes = np.bincount(kept.session[kept.session >= 0])
    assert set(sizes) <= {0, 10}


def test_copies_keep_the_hours_of_the_day() -> None:
    rng = np.random.default_rng(0)
    times = np.sort(np.concatenate([rng.uniform(0, 86_400, 2_000), rng.uniform(40_000, 50_000, 20_000)]))
    trace = Trace(times, np.ones(len(times), dtype=np.int64), np.ones(len(times), dtype=np.int64))
    scaled = load_scaled(trace, 3)
    before, after = (np.histogram(one.arrived_s, bins=12, range=(0, 86_400))[0] / len(one) for one in (trace, scaled))
    assert np.abs(before - after).max() < 0.03


pairs_of_lengths = st.lists(st.tuples(st.integers(1, 200_000), st.integers(1, 50_000)), min_size=1, max_size=50)


@pytest.mark.whole
@given(pairs=pairs_of_lengths, max_model_len=st.integers(16, 300_000))
def test_scaled_lengths_fit_the_context_and_keep_their_order(pairs: list[tuple[int, int]], max_model_len: int) -> None:
    prompt, output = (np.array(column, dtype=np.int64) for column in zip(*pairs, strict=True))
    scale = scale_to_fit(prompt, output, max_model_len)
    scaled_prompt, scaled_output = scale_lengths(prompt, scale), scale_lengths(output, scale)
    assert (scaled_prompt + scaled_output).max() <= max_model_len
    assert min(scaled_prompt.min(), scaled_output.min()) >= 1
    order = np.argsort(prompt, kind="stable")
    assert (np.diff(scaled_prompt[order]) >= 0).all()


@pytest.mark.whole
@given(
    pairs=pairs_of_lengths,
    max_model_len=st.integers(16, 300_000),
    chunk=st.integers(1, 512),
    block=st.sampled_from([1, 16, 64]),
)
def test_chunks_shrink_with_their_prompts(
    pairs: list[tuple[int, int]], max_model_len: int, chunk: int, block: int
) -> None:
    prompt, output = (np.array(column, dtype=np.int64) for column in zip(*pairs, strict=True))
    counts = (prompt // chunk).astype(np.int32)
    prefixes = Prefixes(chunk, np.arange(int(counts.max())), np.zeros(len(prompt), dtype=np.int64), counts)
    whole = Trace(np.zeros(len(prompt)), prompt, output, prefixes=prefixes)
    small = fitted(whole, max_model_len, block)
    assert (small.prompt_tokens + small.output_tokens).max() <= max_model_len
    assert small.prefixes is not None
    scale = scale_to_fit(prompt, output, max_model_len)
    if scale == 1.0:
        assert small is whole
        return
    size = small.prefixes.chunk_tokens
    assert size % block == 0
    assert (small.prefixes.counts * size <= scale * counts * chunk + 1e-3).all()
    assert (small.prefixes.counts * size > scale * counts * chunk - size - 1e-3).all()  # less than a chunk is lost
    kinds = [change.kind for change in small.changes]
    assert kinds == [ChangeKind.SHRUNK, *([ChangeKind.PREFIXES_CUT] if counts.any() else [])]


chains = st.lists(st.lists(st.integers(0, 2), max_size=12), min_size=2, max_size=8)


@pytest.mark.whole
@given(chains=chains, chunk=st.integers(1, 80), block=st.sampled_from([1, 16]), scale=st.floats(0.05, 1))
def test_prompts_share_after_shrinking_what_they_shared_before(
    chains: list[list[int]], chunk: int, block: int, scale: float
) -> None:
    """Each old hash names all of its prompt up to there, as in every trace."""
    names: dict[tuple[int, ...], int] = {}
    hashed = [[names.setdefault(tuple(chain[: n + 1]), len(names)) for n in range(len(chain))] for chain in chains]
    counts = np.array([len(chain) for chain in hashed], dtype=np.int32)
    flat = np.array([one for chain in hashed for one in chain], dtype=np.int64)
    cut = cut_to_blocks(Prefixes(chunk, flat, np.cumsum(counts) - counts, counts), block, scale)
    for one in range(len(chains)):
        for other in range(one):
            old, new = (shared(*pair) for pair in ((hashed[one], hashed[other]), (cut[one], cut[other])))
            tokens = old * chunk * scale
            assert new * cut.chunk_tokens <= tokens + 1e-3
            assert new * cut.chunk_tokens > tokens - cut.chunk_tokens - 1e-3
            assert len(set(cut[one])) == len(cut[one])


def shared(one: Sequence[int], other: Sequence[int]) -> int:
    """How many of their first values are the same."""
    return next((n for n, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


def test_every_option_is_noted_with_its_counts() -> None:
    lengths = np.full(10, 5)
    trace = Trace(np.arange(10.0), lengths, lengths)
    assert trace.changes == ()
    changed = load_scaled(time_scaled(first_requests(window(trace, 2, 8), 4), 0.5), 2.0)
    assert [(one.kind, one.count, one.of) for one in changed.changes] == [
        (ChangeKind.OUTSIDE_WINDOW, 4, 10),
        (ChangeKind.BEYOND_LIMIT, 2, 6),
        (ChangeKind.TIME_SCALED, 4, 4),
        (ChangeKind.COPIED, 4, 4),
    ]
    assert load_scaled(time_scaled(first_requests(window(trace), 10), 1.0), 1.0).changes == ()
    thin = load_scaled(trace, 0.5)
    assert [(one.kind, one.count) for one in thin.changes] == [(ChangeKind.THINNED, 10 - len(thin))]


def test_what_does_not_fit_is_rejected_with_its_reason() -> None:
    trace = Trace(np.arange(4.0), np.array([10, 90, 60, 95]), np.array([5, 10, 10, 10]), np.array([0, 0, 50, 0]))
    kept = within(trace, LengthLimits(100, 80))
    assert kept.prompt_tokens.tolist() == [10]
    assert [(one.kind, one.count, one.of) for one in kept.changes] == [
        (ChangeKind.CONTEXT_LENGTH_EXCEEDED, 2, 4),
        (ChangeKind.KV_CACHE_EXCEEDED, 1, 4),
    ]
    assert within(trace, LengthLimits(200)) is trace
    fit = within(trace, LengthLimits(100, 80, fit=True))
    assert len(fit) == 4
    assert (fit.prompt_tokens + fit.output_tokens).max() <= 80


def test_chunks_of_other_sizes_than_a_block_are_cut_to_blocks() -> None:
    prefixes = Prefixes(50, np.arange(8), np.zeros(2, dtype=np.int64), np.array([8, 3], dtype=np.int32))
    lengths = np.array([400, 150])
    cut = blockwise(Trace(np.zeros(2), lengths, lengths, prefixes=prefixes), 16)
    assert cut.prefixes is not None
    assert (cut.prefixes.chunk_tokens, cut.prefixes.counts.tolist()) == (48, [8, 3])
    assert cut.prefixes[0][:3] == cut.prefixes[1]
    assert str(cut.changes[0]) == (
        "2 of 2 requests (100.0 %): prefixes in chunks of 48 tokens (were 50); 96.0 % of their tokens can still be "
        "found in a cache"
    )
