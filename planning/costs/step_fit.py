"""The cost model from an engine's own steps.

    step = fixed + token(tokens) + sum over k of sampled[k] * min(sequences, k) + kv_read * KV tokens of its decodes
    and one that prefills
           + launch + prompt * prompts + context * sum of chunk * (past + chunk / 2)

`token` is piecewise linear and does not fall: matrix products cost a processor less and less a token as they fill up,
and a GPU next to nothing until they have. Sums of min(x, k) with factors that are not negative are the concave curves:
a first sequence costs more than the next ones. `launch` comes once a step: the host launches the kernels of a step that
prefills one by one.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from deployments.engine_model.cost_model import Attention, CostModel, Curve, OneKernel, Surface, half_square, line
from planning.costs.nonnegative import Matrix, least_deviance
from planning.costs.steps import StepSample

KNEES = (8.0, 32.0, 128.0, 256.0, 512.0)
"""Of tokens; the last piece goes on beyond them."""
SEQUENCE_KNEES = (2.0, 4.0, 16.0)
MIN_SAMPLES = 100
_FULL_S = 1.0
"""Seconds a pair of tokens of an attention that fills the processor by itself: longer than any."""


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
    attention = _attention(*rest)
    predicted = rows @ found
    error = float(np.mean(np.abs(predicted / seconds - 1)))
    return Fitted(
        CostModel(_rising(fixed, tokens), _concave(0.0, sampled, SEQUENCE_KNEES), attention),
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
    pieces = [np.clip(tokens - low, 0, high - low) for low, high in pairwise((0.0, *KNEES, np.inf))]
    columns = [np.ones(len(samples)), *pieces, *_knees(decodes + prompts, SEQUENCE_KNEES)]
    return np.column_stack([*columns, mixed, prompts, pairs, read * ~mixed, read * mixed])


def _attention(launch: float, prompt: float, context: float, kv_read: float, mixed_kv_read: float) -> Attention:
    """The second equation. `OneKernel` is the form that knows of costs once a step; here all of its work adds up."""
    squares = half_square(context)
    prompts = Curve(squares.at, tuple(prompt + value for value in squares.seconds))
    beside = Surface((0.0, 1.0), (0.0, 1.0), ((0.0, 0.0), (0.0, mixed_kv_read)))
    kernel = OneKernel(launch, prompts, line(0.0, context), _FULL_S, 0.0, 0.0, beside)
    return Attention(line(0.0, 0.0), prompts, kv_read, 0.0, context, 0.0, 0.0, mixed_kv_read, one_kernel=kernel)


def _knees(x: Matrix, knees: tuple[float, ...]) -> list[Matrix]:
    return [*(np.minimum(x, knee) for knee in knees), x]


def _rising(fixed: float, slopes: list[float]) -> Curve:
    """fixed, and a slope for each piece between two knees."""
    knots, value = (0.0, *KNEES, 2 * KNEES[-1]), [fixed]
    for (low, high), slope in zip(pairwise(knots), slopes, strict=True):
        value.append(value[-1] + slope * (high - low))
    return Curve(knots, tuple(value))


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
