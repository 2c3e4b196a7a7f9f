"""How long prompts and answers are: a fixed number of tokens, or a distribution that lengths are drawn from.

Pure. `raylane bench` parses its options with it. Lengths that were recorded come from `traces.py` instead.
"""

import itertools
import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

IntArray = NDArray[np.int64]
MAX_TOKENS = 10_000_000
ALLOWED = (
    "a number of tokens (128), uniform:LOW:HIGH (uniform:16:512), lognormal:MEAN:SIGMA (lognormal:200:0.8) or "
    "quantiles:PERCENT=TOKENS,... from 0 to 100, both ascending (quantiles:0=5,50=300,90=1200,100=8000)"
)


@dataclass(frozen=True, slots=True)
class Fixed:
    """Always the same length."""

    tokens: int

    def sample(self, count: int, rng: np.random.Generator) -> IntArray:
        """`count` times the same length."""
        return np.full(count, self.tokens, dtype=np.int64)

    def __str__(self) -> str:
        return str(self.tokens)


@dataclass(frozen=True, slots=True)
class Uniform:
    """Each length from `low` to `high`, both included, equally often."""

    low: int
    high: int

    def sample(self, count: int, rng: np.random.Generator) -> IntArray:
        """`count` independent draws."""
        return rng.integers(self.low, self.high, size=count, endpoint=True, dtype=np.int64)

    def __str__(self) -> str:
        return f"uniform:{self.low}:{self.high}"


@dataclass(frozen=True, slots=True)
class LogNormal:
    """Log-normal lengths: `mean` is the mean in tokens, `sigma` the deviation of the natural logarithm.

    mean = exp(mu + sigma^2 / 2), so mu = ln(mean) - sigma^2 / 2. Draws are rounded, and held between 1 and MAX_TOKENS.
    """

    mean: float
    sigma: float

    def sample(self, count: int, rng: np.random.Generator) -> IntArray:
        """`count` independent draws."""
        draws = rng.lognormal(math.log(self.mean) - self.sigma**2 / 2, self.sigma, size=count)
        return np.clip(np.rint(draws), 1, MAX_TOKENS).astype(np.int64)

    def __str__(self) -> str:
        return f"lognormal:{self.mean:g}:{self.sigma:g}"


@dataclass(frozen=True, slots=True)
class Quantiles:
    """Lengths by their quantiles: `percents` from 0 to 100, ascending, and the `tokens` at each. Between them, all are
    equally often."""

    percents: tuple[float, ...]
    tokens: tuple[float, ...]

    def sample(self, count: int, rng: np.random.Generator) -> IntArray:
        """`count` independent draws, by the inverse of the distribution function."""
        draws = np.interp(100 * rng.random(count), self.percents, self.tokens)
        drawn: IntArray = np.maximum(np.rint(draws), 1).astype(np.int64)
        return drawn

    def __str__(self) -> str:
        return "quantiles:" + ",".join(
            f"{percent:.15g}={tokens:.15g}" for percent, tokens in zip(self.percents, self.tokens, strict=True)
        )


Lengths = Fixed | Uniform | LogNormal | Quantiles


def parse_lengths(text: str) -> Lengths:
    """The lengths that an option's text names. Raises ValueError that says what is allowed."""
    kind, *numbers = text.strip().split(":")
    try:
        match kind, numbers:
            case "uniform", [low, high]:
                return _uniform(int(low), int(high))
            case "lognormal", [mean, sigma]:
                return _lognormal(float(mean), float(sigma))
            case "quantiles", [table]:
                return _quantiles(table)
            case fixed, []:
                return Fixed(_bounded(int(fixed)))
    except _OutOfRangeError:
        raise
    except ValueError:
        pass
    raise ValueError(f"{text!r} is no length; allowed: {ALLOWED}")


class _OutOfRangeError(ValueError):
    """A number that was read, and is not allowed."""


def _bounded(tokens: int) -> int:
    if not 1 <= tokens <= MAX_TOKENS:
        raise _OutOfRangeError(f"{tokens} tokens; allowed: 1 to {MAX_TOKENS}")
    return tokens


def _uniform(low: int, high: int) -> Uniform:
    if _bounded(low) > _bounded(high):
        raise _OutOfRangeError(f"uniform:{low}:{high} has LOW above HIGH; allowed: LOW <= HIGH")
    return Uniform(low, high)


def _lognormal(mean: float, sigma: float) -> LogNormal:
    if not 1 <= mean <= MAX_TOKENS:
        raise _OutOfRangeError(f"a mean of {mean:g} tokens; allowed: 1 to {MAX_TOKENS}")
    if not 0 <= sigma <= 5:
        raise _OutOfRangeError(f"a sigma of {sigma:g}; allowed: 0 to 5")
    return LogNormal(mean, sigma)


def _quantiles(table: str) -> Quantiles:
    pairs = [entry.split("=") for entry in table.split(",")]
    percents, tokens = (tuple(float(pair[side]) for pair in pairs if len(pair) == 2) for side in (0, 1))
    if len(percents) != len(pairs) or len(pairs) < 2:
        raise ValueError
    ascending = all(low < high for low, high in itertools.pairwise(percents)) and all(
        low <= high for low, high in itertools.pairwise(tokens)
    )
    if not ascending or (percents[0], percents[-1]) != (0, 100):
        raise _OutOfRangeError(f"quantiles:{table} does not ascend from 0 to 100; allowed: {ALLOWED}")
    if not (tokens[0] >= 1 and tokens[-1] <= MAX_TOKENS):
        raise _OutOfRangeError(
            f"quantiles:{table} has {tokens[0]:g} to {tokens[-1]:g} tokens; allowed: 1 to {MAX_TOKENS}"
        )
    return Quantiles(percents, tokens)
