"""The cost model from a profile of a model's layers: tables of times by tokens, by sequences, and of attention by what
it reads.

What is not in the tables of attention alone (prompts beside decodes) is fitted, by kind of step; the rest is read off
the tables.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from deployments.engine_model.cost_model import Attention, CostModel, Curve, line, table
from planning.costs.nonnegative import Matrix, least_relative_error
from planning.costs.roofline import STEP_OVERHEAD_S

_BLOCK_LAYERS: Mapping[str, int] = {
    "layernorm": 2,
    "qkv_proj": 1,
    "rotary_emb": 1,
    "o_proj": 1,
    "gate_up_proj": 1,
    "act_fn": 1,
    "down_proj": 1,
}
"""The layers of a transformer block by the names of the profile, and how often each stands in one."""
_ONCE = ("embedding", "final_layernorm")


def from_profile(
    dense: Mapping[str, Sequence[tuple[int, float]]],
    per_sequence: Mapping[str, Sequence[tuple[int, float]]],
    attention: Sequence[tuple[int, int, int, int, float]],
    blocks: int,
) -> CostModel:
    """The cost model of a model of `blocks` transformer blocks from a profile of its layers, times in microseconds.

    `dense`: by layer, (tokens, time). `per_sequence`: by layer, (sequences, time). `attention`: (prefill chunk, its
    past tokens, decodes, KV tokens of each, time) of one block.
    """
    knots = sorted({tokens for tokens, _ in dense["qkv_proj"]})
    curves = {name: table([(float(x), y) for x, y in points]) for name, points in dense.items()}
    total = [
        blocks * sum(count * curves[name](x) for name, count in _BLOCK_LAYERS.items())
        + sum(curves[name](x) for name in _ONCE)
        for x in knots
    ]
    samplers = [table([(float(x), y) for x, y in points]) for points in per_sequence.values()]
    counts = sorted({count for points in per_sequence.values() for count, _ in points})
    sampled = Curve(tuple(float(n) for n in counts), tuple(1e-6 * sum(curve(n) for curve in samplers) for n in counts))
    # A profile of the layers shows the GPU at work, and not what the engine does between its steps.
    dense_curve = Curve(tuple(float(x) for x in knots), tuple(STEP_OVERHEAD_S + 1e-6 * us for us in total))
    return CostModel(dense_curve, sampled, _attention(np.array(attention, dtype=np.float64), 1e-6 * blocks))


def _attention(points: Matrix, scale: float) -> Attention:
    """The costs of attention, in `scale` times the profile's unit. Decodes alone, prompts alone, and what decodes add
    to prompts: one fit each."""
    chunk, past, decodes, kv, time = points.T
    alone, prompts, mixed = chunk == 0, decodes == 0, (chunk > 0) & (decodes > 0)
    fixed, each, kv_read = scale * least_relative_error(
        np.column_stack([np.ones(alone.sum()), decodes[alone], (decodes * kv)[alone]]), time[alone]
    )
    first = prompts & (past == 0)
    prompt = table(list(zip(chunk[first].tolist(), time[first].tolist(), strict=True)))
    self_time = np.array([prompt(size) if size else 0.0 for size in chunk])
    later = prompts & (past > 0)
    pasts = np.column_stack([past, chunk * past])
    past_read, context = least_relative_error(pasts[later], np.maximum(time - self_time, 0)[later], time[later])
    rest = np.maximum(time - self_time - pasts @ np.array([past_read, context]), 0)
    mixed_terms = np.column_stack([decodes, decodes * chunk, decodes * kv])[mixed]
    mixed_each, mixed_token, mixed_kv = least_relative_error(mixed_terms, rest[mixed], time[mixed])
    prompt_s = Curve(prompt.at, tuple(scale * us for us in prompt.value))
    return Attention(
        line(fixed, each),
        prompt_s,
        kv_read,
        *(scale * float(us) for us in (past_read, context, mixed_each, mixed_token, mixed_kv)),
    )
