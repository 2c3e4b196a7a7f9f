"""The parts of a cost model that have an equation of their own, and cost files that hold them."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deployments.engine_model.cost_file import CostBasis, CostSource, cost_file, read_cost_file, write_cost_file
from deployments.engine_model.cost_model import (
    Attention,
    Chunk,
    CostModel,
    Curve,
    OneKernel,
    Surface,
    line,
    plain_attention,
    slowed,
)
from deployments.engine_model.limits import EngineModelLimits

PLANE = Surface((0.0, 2.0, 8.0), (0.0, 100.0, 1_000.0), ((0.0, 0.0, 0.0), (0.0, 2.0, 20.0), (0.0, 8.0, 80.0)))
"""x * y / 100."""
KERNEL = OneKernel(1e-3, line(0.0, 1e-5), line(0.0, 1e-9), 1e-9, 1e-7, 1e-9, PLANE.times(1e-5))
LIMITS = EngineModelLimits(16, 512, 10_000)


def model(kernel: OneKernel | None = KERNEL) -> CostModel:
    plain = plain_attention(3e-8, 1e-10)
    attention = Attention(plain.decode, plain.prompt, 3e-8, 0.0, 1e-10, 0.0, 0.0, 3e-8, kernel)
    return CostModel(line(0.004, 2e-5), line(0.0, 1e-5), attention, line(0.001, 1e-4), 0.002)


@given(st.floats(0, 50), st.floats(0, 10_000))
def test_a_surface_is_bilinear_between_and_beyond_its_knots(x: float, y: float) -> None:
    assert PLANE(x, y) == pytest.approx(x * y / 100)


@pytest.mark.parametrize(
    ("x", "y", "value"), [((0.0,), (0.0, 1.0), ((0.0, 0.0),)), ((0.0, 1.0), (0.0, 1.0), ((0.0, 0.0),))]
)
def test_a_surface_needs_two_knots_each_way_and_a_row_for_each(
    x: tuple[float, ...], y: tuple[float, ...], value: tuple[tuple[float, ...], ...]
) -> None:
    with pytest.raises(ValueError, match="surface"):
        Surface(x, y, value)


@given(st.integers(1, 4_096), st.integers(0, 30_000))
def test_a_prompt_alone_takes_its_own_time(tokens: int, past: int) -> None:
    alone = KERNEL.prompt(tokens) + KERNEL.past(tokens) * past
    assert KERNEL.seconds([Chunk(tokens, past)], 0, 0) == pytest.approx(KERNEL.launch_s + alone)


@given(
    st.lists(st.builds(Chunk, st.integers(1, 2_048), st.integers(0, 10_000)), min_size=1, max_size=4),
    st.integers(0, 256),
    st.floats(1, 20_000),
)
def test_more_of_anything_takes_no_less_and_sharing_never_more_than_one_after_the_other(
    chunks: list[Chunk], decodes: int, each: float
) -> None:
    both = KERNEL.seconds(chunks, decodes, decodes * each)
    assert both >= KERNEL.seconds(chunks, 0, 0)
    assert KERNEL.seconds(chunks, decodes + 1, (decodes + 1) * each) >= both
    assert KERNEL.seconds([*chunks, Chunk(64, 0)], decodes, decodes * each) >= both
    tokens = sum(chunk.tokens for chunk in chunks)
    decoding = KERNEL.beside(decodes, each) + KERNEL.empty_s * decodes * tokens + KERNEL.chain_s * each
    in_turn = sum(KERNEL.seconds([chunk], 0, 0) for chunk in chunks) + decoding
    assert both <= in_turn * (1 + 1e-9)


@given(st.floats(0.1, 10), st.integers(0, 64), st.booleans())
def test_a_slower_machine_takes_longer_for_everything(factor: float, decodes: int, shared: bool) -> None:
    cost = model() if shared else model(None)
    slow = slowed(cost, factor)
    for chunks in ([], [Chunk(100, 0), Chunk(7, 400)]):
        if chunks or decodes:
            before, after = (each.step_s(chunks, decodes, 500.0 * decodes, len(chunks)) for each in (cost, slow))
            assert after == pytest.approx(factor * before)
    assert slow.back_s == pytest.approx(factor * cost.back_s)


def test_a_cost_file_keeps_all_of_it(tmp_path: Path) -> None:
    source = CostSource(part="kernels", basis=CostBasis.PROFILE, share=1.0, low=0.9, high=1.2)
    content = cost_file("m", "1 x H100", "profile", LIMITS, model(), sources=[source], unmodelled=["windows"])
    write_cost_file(tmp_path / "costs.json", content)
    read = read_cost_file(tmp_path / "costs.json")
    assert read == content
    assert read.cost_model().attention == model().attention
    assert read.unmodelled == ("windows",)
    chunks = [Chunk(100, 50), Chunk(30, 0)]
    assert read.cost_model().step_s(chunks, 9, 5_000, 1) == model().step_s(chunks, 9, 5_000, 1)


def test_the_likely_range_adds_what_is_independent() -> None:
    parts = [
        CostSource(part="kernels", basis=CostBasis.DATA_SHEET, share=0.6, low=0.5, high=1.5),
        CostSource(part="host", basis=CostBasis.OTHER_PROFILE, share=0.4, low=0.5, high=2.0),
    ]
    content = cost_file("m", "1 x H100", "roofline", LIMITS, model(), sources=parts)
    assert content.likely() == (
        pytest.approx(1 - (0.3**2 + 0.2**2) ** 0.5),
        pytest.approx(1 + (0.3**2 + 0.4**2) ** 0.5),
    )


def test_a_curve_times_a_factor() -> None:
    assert Curve((1.0, 2.0), (3.0, 4.0)).times(2) == Curve((1.0, 2.0), (6.0, 8.0))


@given(st.integers(1, 8), st.integers(0, 64), st.lists(st.integers(1, 2_048), max_size=3), st.integers(1, 40))
def test_data_parallel_ranks_take_what_the_fullest_one_takes(
    ranks: int, decodes: int, prompts: list[int], steps: int
) -> None:
    one = model(None)
    several = CostModel(one.dense, one.sequence, one.attention, ranks=ranks)
    chunks, kv = [Chunk(tokens, 0) for tokens in prompts], 500.0 * decodes
    if not chunks and not decodes:
        return
    alone_s = one.step_s(chunks, decodes, kv, len(chunks))
    assert several.step_s(ranks * chunks, ranks * decodes, ranks * kv, ranks * len(chunks)) == pytest.approx(alone_s)
    for chunk in chunks:
        assert several.step_s([chunk], 0, 0, 1) == one.step_s([chunk], 0, 0, 1), "a prompt is on one of them"
    if decodes:
        run_s = several.run_s(steps, decodes, kv)
        each_s = [several.step_s((), decodes, kv + step * decodes, 0) for step in range(steps)]
        assert run_s == pytest.approx(sum(each_s))
        assert several.steps_in(run_s, decodes, kv) == steps
