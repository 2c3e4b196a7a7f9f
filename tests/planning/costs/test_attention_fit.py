"""Attention from a table: known truths are found again, and rows that were held back are predicted."""

import hashlib
from collections.abc import Callable

import numpy as np
import pytest

from deployments.engine_model.cost_model import Chunk, Curve, OneKernel, Surface
from planning.costs.attention_fit import AttentionTable, attention_of
from planning.costs.nonnegative import Matrix
from planning.costs.profile_files import read_profile
from tests.planning.costs.measured import LLAMA_PROFILE, QWEN_PROFILE, RUNS

Row = tuple[int, int, int, int, float]


def predicted(fitted: AttentionTable, rows: AttentionTable) -> Matrix:
    """The time of each row."""
    attention = attention_of(fitted, 1.0)
    kernel = attention.one_kernel
    assert kernel is not None
    return np.array(
        [
            kernel.seconds([Chunk(int(chunk), int(past))], int(decodes), decodes * kv)
            if chunk
            else attention.decode(decodes) + attention.kv_read_s * decodes * kv
            for chunk, past, decodes, kv in zip(*rows.columns[:4], strict=True)
        ]
    )


def table_of(seconds: Callable[[int, int, int, int], float], mixed: bool = True) -> list[Row]:
    sizes = [(chunk, past, 0, 0) for chunk in (16, 128, 512, 2_048) for past in (0, 512, 4_096)]
    sizes += [(0, 0, decodes, kv) for decodes in (1, 4, 16, 64) for kv in (16, 256, 4_096)]
    if mixed:
        sizes += [
            (chunk, past, decodes, kv)
            for chunk, past, *_ in sizes
            if chunk
            for decodes in (1, 16, 64)
            for kv in (16, 64, 1_024, 4_096)
        ]
    return [(*row, seconds(*row)) for row in sizes]


def added(chunk: int, past: int, decodes: int, kv: int) -> float:
    """A GPU that is always full: all adds up."""
    return 8.0 + 5e-5 * chunk * (past + chunk / 2) + 0.004 * decodes * kv


CHUNKS = (16.0, 128.0, 512.0, 2_048.0)
TRUE = OneKernel(
    8.0,
    Curve(CHUNKS, tuple(max(0.02 * size, 6e-5 * size * size / 2) for size in CHUNKS)),
    Curve(CHUNKS, tuple(max(0.02, 6e-5 * size) for size in CHUNKS)),
    6e-5,
    0.02,
    1e-3,
    Surface((0.0, 16.0, 64.0), (0.0, 4_096.0), ((0.0, 0.0), (10.0, 290.0), (40.0, 1_160.0))),
)


def true(chunk: int, past: int, decodes: int, kv: int) -> float:
    if chunk:
        return TRUE.seconds([Chunk(chunk, past)], decodes, decodes * kv)
    return 10.0 + 0.2 * decodes + 0.003 * decodes * kv


def test_a_kernel_is_found_again_from_its_times() -> None:
    rows = AttentionTable.of(table_of(true))
    error = np.abs(predicted(rows, rows) / rows.time - 1)
    assert error.max() < 0.15
    assert error.mean() < 0.02


def test_without_rows_of_both_decodes_cost_beside_prompts_what_they_cost_alone() -> None:
    fitted = AttentionTable.of(table_of(added, mixed=False))
    rows = AttentionTable.of(table_of(added))
    assert np.abs(predicted(fitted, rows) / rows.time - 1).max() < 0.1


@pytest.mark.skipif(not RUNS.is_dir(), reason="the profiles (../shared/data/vllm_runs) are not on this machine")
@pytest.mark.whole
@pytest.mark.parametrize(("profile", "gpus"), [(LLAMA_PROFILE, 1), (QWEN_PROFILE, 2)])
def test_rows_that_were_held_back_are_predicted(profile: str, gpus: int) -> None:
    """One half by hash is fitted, the other one judged. The fit before was off by 14 % and by -32 % in all."""
    points = read_profile(RUNS / profile, gpus).attention
    held = np.array([hashlib.sha256(repr(row[:4]).encode()).digest()[0] % 2 == 0 for row in points])
    rows = AttentionTable.of(points)
    judged = rows.where(held)
    times, error = judged.time, predicted(rows.where(~held), judged) / judged.time - 1
    mixed = (judged.chunk > 0) & (judged.decodes > 0)
    usual = mixed & (judged.decodes >= 16) & (judged.kv <= 4_096) & (judged.past <= 2_048)
    few = (judged.chunk == 0) & (judged.kv < 256)
    assert np.abs(error * times)[few].max() < 35, "microseconds a block: what is linear cannot follow the first keys"
    decodes, prompts = (judged.chunk == 0) & ~few, (judged.chunk > 0) & (judged.decodes == 0)
    for chosen, bound in ((decodes, 0.06), (prompts, 0.06), (mixed, 0.09), (usual, 0.06)):
        assert np.abs(error[chosen]).mean() <= bound
        assert abs((error * times)[chosen].sum() / times[chosen].sum()) <= 0.07
