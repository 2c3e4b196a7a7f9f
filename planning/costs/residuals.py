"""How good a fit of steps is, part by part, on steps that it was not fitted to; and which steps no probe reached. Pure.

Every fifth block of successive steps is held out. Steps beside each other are alike: a single one between two that were
fitted would be half known.
"""

from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np

from deployments.engine.step_log import EngineFacts
from deployments.engine_model.cost_file import PartResidual
from deployments.engine_model.cost_model import CostModel
from planning.costs.steps import StepSample, predicted_s

BLOCK, EVERY = 40, 5
"""Steps of a block, and which of the blocks are held out."""
BATCHES = (0, 1, 8, 32, 128)
"""Decodes of a step: the upper ends of the groups, but for the last one, which is open."""
FEW = 5
"""Steps; a combination with fewer was not covered."""
PROMPTS_ALONE, BESIDE = "prompts alone", "prompts beside decodes"


def split(samples: Sequence[StepSample]) -> tuple[list[StepSample], list[StepSample]]:
    """The steps to fit, and those that are held out."""
    fitted: list[StepSample] = []
    held: list[StepSample] = []
    for number, sample in enumerate(samples):
        (held if number // BLOCK % EVERY == EVERY - 1 else fitted).append(sample)
    return fitted, held


def batch_name(decodes: int) -> str:
    """The group of a number of decodes, in words."""
    for low, high in pairwise(BATCHES):
        if decodes <= high:
            return "1 decode" if high == 1 else f"{low + 1} to {high} decodes"
    return f"more than {BATCHES[-1]} decodes"


def part_of(sample: StepSample) -> str:
    """The part of the costs that a step tells of."""
    if sample.prompts:
        return BESIDE if sample.decodes else PROMPTS_ALONE
    return batch_name(sample.decodes)


def parts() -> list[str]:
    """All parts, in the order of a report."""
    return [PROMPTS_ALONE, BESIDE, *(batch_name(low + 1) for low in BATCHES)]


def held_out(cost: CostModel, held: Sequence[StepSample]) -> tuple[PartResidual, ...]:
    """What the costs predict of the held-out steps beside what was measured, by part. Parts without a step are left
    out."""
    found: dict[str, list[tuple[float, float]]] = {part: [] for part in parts()}
    for sample in held:
        found[part_of(sample)].append((sample.seconds, predicted_s(cost, sample)))
    seconds = {part: np.array(rows) for part, rows in found.items() if rows}
    total = sum(float(rows[:, 0].sum()) for rows in seconds.values())
    residuals = []
    for part, rows in seconds.items():
        measured, predicted = rows[:, 0], rows[:, 1]
        off = np.abs(predicted / measured - 1)
        residuals.append(
            PartResidual(
                part=part,
                steps=len(rows),
                share=float(measured.sum() / total),
                bias=float(predicted.sum() / measured.sum() - 1),
                error=float(off.mean()),
                p90=float(np.quantile(off, 0.9)),
            )
        )
    return tuple(residuals)


def likely_bias(residuals: Sequence[PartResidual]) -> float:
    """The mean absolute error of the parts' total times, by their shares: what traffic with another mix of the same
    parts may be off by."""
    return sum(one.share * abs(one.bias) for one in residuals)


Ends = tuple[tuple[int, int], ...]


def not_covered(samples: Sequence[StepSample], facts: EngineFacts, max_model_len: int) -> list[str]:
    """The combinations that the engine's limits allow and that fewer than `FEW` steps had: decodes by their KV cache,
    prompts by their chunk and the decodes beside them, and chunks behind a part of their prompt."""
    batches = _batches(facts.max_num_seqs)
    alone = [(one.decodes, one.kv_read_tokens / one.decodes) for one in samples if one.decodes and not one.prompts]
    chunks = [(one.decodes, one.prompt_tokens) for one in samples if one.prompts]
    pasts = [one.past_tokens for one in samples if one.prompts == 1]
    found = list(_empty_decodes(alone, batches, _sizes(max_model_len), facts.kv_tokens))
    budget = min(facts.max_num_batched_tokens, max_model_len * facts.max_num_seqs)
    for low, high in ((0, 0), *batches):
        for small, large in _sizes(budget):
            reached = sum(low <= decodes <= high and small <= tokens <= large for decodes, tokens in chunks)
            if reached < FEW and small + low <= facts.max_num_batched_tokens:
                beside = f"beside {_span(low, high)} decode{'' if high == 1 else 's'}" if high else "alone"
                found.append(f"steps of {_span(small, large)} prompt tokens {beside}: {_count(reached)}")
    for small, large in _sizes(max_model_len):
        reached = sum(small <= past <= large for past in pasts)
        if small > facts.max_num_batched_tokens and reached < FEW:
            found.append(f"prompts that go on behind {_span(small, large)} tokens: {_count(reached)}")
    return found


def _empty_decodes(alone: Sequence[tuple[int, float]], batches: Ends, sizes: Ends, kv_tokens: int) -> Iterator[str]:
    for low, high in batches:
        for small, large in sizes:
            reached = sum(low <= decodes <= high and small <= each < large + 1 for decodes, each in alone)
            if reached < FEW and low * small <= kv_tokens:
                decodes = "1 decode" if high == 1 else f"{_span(low, high)} decodes"
                yield f"{decodes} with {_span(small, large)} KV tokens each: {_count(reached)}"


def _batches(max_num_seqs: int) -> Ends:
    ends = [*(each for each in BATCHES if each < max_num_seqs), max_num_seqs]
    return tuple((low + 1, high) for low, high in pairwise(ends))


def _sizes(limit: int) -> Ends:
    """Up to a sixteenth, a quarter and all of a limit."""
    ends = sorted({0, limit // 16, limit // 4, limit})
    return tuple((low + 1, high) for low, high in pairwise(ends))


def _span(low: int, high: int) -> str:
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"


def _count(steps: int) -> str:
    return f"{steps} step{'' if steps == 1 else 's'}" if steps else "no step"
