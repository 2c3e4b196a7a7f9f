"""How long prompts and answers are: a fixed number of tokens, or a distribution that lengths are drawn from.

Pure. `command.py` parses the options with it, `workload.py` draws from it. Lengths that were recorded come from `traces.py` instead.
"""

import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

IntArray = NDArray[np.int64]
MAX_TOKENS = 10_000_000
ALLOWED = "a number of tokens (128), uniform:LOW:HIGH (uniform:16:512) or lognormal:MEAN:SIGMA (lognormal:200:0.8)"


class Lengths(Protocol):
    """Something that lengths in tokens, each at least 1, can be drawn from."""

    def sample(self, count: int, rng: np.random.Generator) -> IntArray:
        """`count` lengths in tokens."""
        ...


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


def parse_lengths(text: str) -> Lengths:
    """The lengths that an option's text names. Raises ValueError that says what is allowed."""
    kind, *numbers = text.strip().split(":")
    try:
        match kind, numbers:
            case "uniform", [low, high]:
                return _uniform(int(low), int(high))
            case "lognormal", [mean, sigma]:
                return _lognormal(float(mean), float(sigma))
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
