"""The cost model from an engine's own steps.

    step = fixed + sum over k of token[k] * min(tokens, k) + sum over k of sampled[k] * min(sequences, k)
           + prompt * prompts + context * sum of chunk * (past + chunk / 2) + kv_read * KV tokens that its decodes read

Sums of min(x, k) with factors that are not negative are the concave curves: a first token costs more than the next
ones, as matrix products fill up.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from deployments.engine_model.cost_model import Attention, CostModel, Curve, half_square, line
from planning.costs.nonnegative import Matrix, least_deviance
from planning.costs.steps import StepSample

KNEES = (8.0, 32.0, 128.0, 512.0)
"""Of tokens; the last sum goes on beyond them."""
SEQUENCE_KNEES = (2.0, 4.0, 16.0)
MIN_SAMPLES = 100


@dataclass(frozen=True, slots=True)
class Fitted:
    """A fitted model; `error`: the mean relative error of the steps that it was fitted to, `bias` their total
    time's."""

    model: CostModel
    error: float
    bias: float
    samples: int


def fit_steps(samples: Sequence[StepSample]) -> Fitted:
    """Fits the costs. Raises ValueError where there are too few samples, or none that prefills."""
    if len(samples) < MIN_SAMPLES:
        raise ValueError(f"{len(samples)} measured steps; needed: at least {MIN_SAMPLES}")
    if not any(sample.prompts for sample in samples):
        raise ValueError("no measured step has a prompt in it; needed: some of different lengths")
    rows, seconds = _rows(samples), np.array([sample.seconds for sample in samples])
    found = least_deviance(rows, seconds)
    fixed, *rest = found.tolist()
    tokens, rest = rest[: len(KNEES) + 1], rest[len(KNEES) + 1 :]
    sampled, rest = rest[: len(SEQUENCE_KNEES) + 1], rest[len(SEQUENCE_KNEES) + 1 :]
    prompt, context, kv_read, mixed_kv_read = rest
    squares = half_square(context)
    prompts = Curve(squares.at, tuple(prompt + value for value in squares.value))
    attention = Attention(line(0.0, 0.0), prompts, kv_read, 0.0, context, 0.0, 0.0, mixed_kv_read)
    predicted = rows @ found
    error = float(np.mean(np.abs(predicted / seconds - 1)))
    return Fitted(
        CostModel(_concave(fixed, tokens, KNEES), _concave(0.0, sampled, SEQUENCE_KNEES), attention),
        error,
        float(predicted.sum() / seconds.sum() - 1),
        len(samples),
    )


def _rows(samples: Sequence[StepSample]) -> Matrix:
    prompts, prompt_tokens, past, decodes, read = (
        np.array([getattr(sample, name) for sample in samples], dtype=np.float64)
        for name in ("prompts", "prompt_tokens", "past_tokens", "decodes", "kv_read_tokens")
    )
    tokens = prompt_tokens + decodes
    chunk = np.divide(prompt_tokens, prompts, out=np.zeros_like(prompts), where=prompts > 0)
    pairs = prompts * chunk**2 / 2 + chunk * past
    mixed = prompts > 0
    columns = [np.ones(len(samples)), *_knees(tokens, KNEES), *_knees(decodes + prompts, SEQUENCE_KNEES)]
    return np.column_stack([*columns, prompts, pairs, read * ~mixed, read * mixed])


def _knees(x: Matrix, knees: tuple[float, ...]) -> list[Matrix]:
    return [*(np.minimum(x, knee) for knee in knees), x]


def _concave(fixed: float, factors: list[float], knees: tuple[float, ...]) -> Curve:
    """fixed + sum of factor * min(x, knee), the last knee being infinite."""
    knots = (0.0, *knees, 2 * knees[-1])
    *bent, straight = factors
    return Curve(
        knots,
        tuple(
            fixed + straight * x + sum(each * min(x, knee) for each, knee in zip(bent, knees, strict=True))
            for x in knots
        ),
    )
