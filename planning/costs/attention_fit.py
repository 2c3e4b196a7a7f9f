"""Attention of one transformer block from a table of times: prompts alone, decodes alone, and both in one step.

    decodes alone   = fixed(decodes) + kv_read * KV tokens                      least relative error
    a prompt alone  = launch + prompt(chunk) + past(chunk) * past tokens        read off the table, by chunk
    both            = `OneKernel` in `deployments/engine_model/cost_model.py`   whose surface is the table's median

`one_kernel` finds the last one's figures in the order in which rows show them: `pair_s` from the largest chunk, which
fills the GPU; `chain_s` from a single decode beside a small prompt, which waits for nothing but its own keys;
`empty_s` from decodes with hardly any keys; what is left of each row is the surface's.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from deployments.engine_model.cost_model import TILE, Attention, Curve, OneKernel, Surface, line, table
from planning.costs.nonnegative import Matrix, least_relative_error

Rows = NDArray[np.bool_]

FULL_SEQUENCES = 16
"""From so many decodes on, a GPU is full with them."""
SHORT_KV = 64
USUAL_KV = 256
LONG_PAST = 512
"""Tokens; below, the launch hides what is read."""


@dataclass(frozen=True, slots=True)
class AttentionTable:
    """Rows of a profile: the chunk of a prompt and its past tokens, decodes and the KV tokens of each, and the time of
    one block in any unit."""

    chunk: Matrix
    past: Matrix
    decodes: Matrix
    kv: Matrix
    time: Matrix

    @classmethod
    def of(cls, points: Sequence[tuple[int, int, int, int, float]]) -> "AttentionTable":
        return cls(*np.array(points, dtype=np.float64).reshape(-1, 5).T)

    def where(self, chosen: Rows) -> "AttentionTable":
        return AttentionTable(*(column[chosen] for column in self.columns))

    @property
    def columns(self) -> tuple[Matrix, ...]:
        return self.chunk, self.past, self.decodes, self.kv, self.time


def attention_of(points: AttentionTable, scale: float, prefilling_s: float = 0.0) -> Attention:
    """The costs of attention, in `scale` times the table's unit; a step that prefills takes `prefilling_s` more. Raises
    ValueError where prompts or decodes alone are not in the table."""
    decodes = points.where(points.chunk == 0)
    prompts = points.where((points.chunk > 0) & (points.decodes == 0))
    if not len(decodes.time) or not (prompts.past == 0).any():
        raise ValueError("the attention table lacks decodes alone, or prompts alone without past tokens")
    decode, kv_read = _decodes(decodes)
    kernel = one_kernel(prompts, points.where((points.chunk > 0) & (points.decodes > 0)), kv_read)
    scaled = kernel.times(scale)
    scaled = replace(scaled, launch_s=scaled.launch_s + prefilling_s)
    return Attention(decode.times(scale), line(0.0, 0.0), scale * kv_read, 0.0, 0.0, 0.0, 0.0, 0.0, scaled)


def _decodes(points: AttentionTable) -> tuple[Curve, float]:
    """What decodes cost by their number, and each KV token that they read. Decodes with hardly any keys cost less than
    this says, where the table has others."""
    usual = points.where(points.kv >= min(USUAL_KV, points.kv.max()))
    counts = np.unique(usual.decodes)
    sizes = np.column_stack([*(usual.decodes == count for count in counts), usual.decodes * usual.kv])
    *fixed, kv_read = least_relative_error(sizes.astype(np.float64), usual.time).tolist()
    return Curve(tuple(counts.tolist()), tuple(fixed)), kv_read


def one_kernel(prompts: AttentionTable, mixed: AttentionTable, kv_read: float) -> OneKernel:
    """`kv_read`: a decode's KV token where the table has no step with prompts and decodes, which then cost the same as
    alone."""
    launch = float(prompts.time.min())
    begins = prompts.where(prompts.past == 0)
    prompt = table(_medians(begins.chunk, begins.time - launch))
    goes_on = prompts.where(prompts.past >= min(LONG_PAST, prompts.past.max()))
    goes_on = goes_on.where(goes_on.past > 0)
    rest = np.maximum(goes_on.time - launch - np.array([prompt(size) for size in goes_on.chunk]), 0)
    past = table(_medians(goes_on.chunk, rest / goes_on.past)) if len(rest) else line(0.0, 0.0)
    largest = past.at[-1]
    pair = past.seconds[-1] / largest if len(rest) else 2 * prompt.seconds[-1] / prompt.at[-1] ** 2
    unfit = OneKernel(launch, prompt, past, pair, 0.0, 0.0, _linear(kv_read))
    return _with_decodes(unfit, mixed) if len(mixed.time) else unfit


def _with_decodes(kernel: OneKernel, rows: AttentionTable) -> OneKernel:
    alone, busy = _prompts(kernel, rows)
    added = np.maximum(rows.time - kernel.launch_s - alone, 0)
    single = (rows.decodes == rows.decodes.min()) & (rows.chunk <= TILE) & (rows.past == 0) & (rows.kv >= 1_024)
    chain = float(np.median(added[single] / rows.kv[single])) if single.any() else 0.0
    short = (rows.decodes >= FULL_SEQUENCES) & (rows.kv <= SHORT_KV) & (rows.past == 0)
    empty = 0.0
    if short.any():
        sizes = np.column_stack([rows.decodes, rows.decodes * rows.chunk])[short]
        empty = float(least_relative_error(sizes, np.maximum(added[short], 1e-3), rows.time[short])[1])
    longest = np.maximum(np.sqrt(alone**2 - busy**2), chain * rows.kv)
    squares = np.maximum(rows.time - kernel.launch_s, 0) ** 2 - longest**2
    left = np.sqrt(np.maximum(squares, 0)) - busy - empty * rows.decodes * rows.chunk
    full = (rows.decodes >= min(FULL_SEQUENCES, rows.decodes.max())) & (squares > 0)
    return OneKernel(
        kernel.launch_s,
        kernel.prompt,
        kernel.past,
        kernel.pair_s,
        chain,
        empty,
        _surface(rows.where(full), np.maximum(left[full], 0)),
    )


def _prompts(kernel: OneKernel, rows: AttentionTable) -> tuple[Matrix, Matrix]:
    alone = np.array(
        [kernel.prompt(size) + kernel.past(size) * past for size, past in zip(rows.chunk, rows.past, strict=True)]
    )
    pairs = np.maximum(rows.chunk, TILE) * (rows.past + rows.chunk / 2)
    return alone, np.minimum(alone, kernel.pair_s * pairs)


def _surface(rows: AttentionTable, work: Matrix) -> Surface:
    """The weighted medians by decodes and KV tokens of each; what the table lacks is interpolated along the KV tokens.
    Fewer decodes than the first row cost a share of it."""
    counts, sizes = np.unique(rows.decodes), np.unique(rows.kv)
    value = []
    for count in counts:
        cells = [(rows.decodes == count) & (rows.kv == size) for size in sizes]
        known = [index for index, cell in enumerate(cells) if cell.any()]
        middle = [_middle(work[cells[index]], 1 / rows.time[cells[index]]) for index in known]
        value.append(tuple(np.interp(sizes, sizes[known], np.maximum.accumulate(middle)).tolist()))
    if len(sizes) == 1:
        sizes, value = np.array([0.0, *sizes]), [(0.0, *row) for row in value]
    return Surface((0.0, *counts.tolist()), tuple(sizes.tolist()), (tuple(0.0 for _ in sizes), *value))


def _linear(kv_read: float) -> Surface:
    return Surface((0.0, 1.0), (0.0, 1.0), ((0.0, 0.0), (0.0, kv_read)))


def _medians(sizes: Matrix, values: Matrix) -> list[tuple[float, float]]:
    return [(float(size), float(np.median(values[sizes == size]))) for size in np.unique(sizes)]


def _middle(values: Matrix, weights: Matrix) -> float:
    """The weighted median: of errors relative to the rows' times, the least sum."""
    order = np.argsort(values)
    total = np.cumsum(weights[order])
    return float(values[order][np.searchsorted(total, total[-1] / 2)])
