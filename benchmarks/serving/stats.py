"""Medians with an interval that assumes nothing about the distribution. Pure."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass


@dataclass(frozen=True, slots=True)
class Estimate:
    """A median, and an interval that holds the true median with probability `coverage`."""

    median: float
    low: float
    high: float
    coverage: float

    def as_json(self) -> dict[str, float]:
        """Plain values."""
        return {name: round(value, 5) for name, value in asdict(self).items()}

    def __str__(self) -> str:
        return f"{self.median:.3f} ({self.low:.3f} to {self.high:.3f})"


def median_interval(values: Sequence[float], coverage: float = 0.9) -> Estimate:
    """The median of `values` with the sign test's interval: the tightest pair of order statistics that covers at least `coverage`.

    With n independent values the median lies between the (k+1)-th smallest and the (k+1)-th largest with probability 1 - 2 P(Bin(n, 1/2) <= k).
    With few values even k = 0, all of their range, covers less than asked for (n = 3: 75 %); the true coverage is therefore part of the answer.
    """
    if not values:
        raise ValueError("no values")
    ordered = sorted(values)
    count = len(ordered)
    drop, covered = 0, _covered(0, count)
    while drop + 1 < count / 2 and _covered(drop + 1, count) >= coverage:
        drop += 1
        covered = _covered(drop, count)
    return Estimate(statistics.median(ordered), ordered[drop], ordered[count - 1 - drop], covered)


def _covered(drop: int, count: int) -> float:
    """Exact in integers: the sum of the two tails is taken from 2^count."""
    tail = sum(math.comb(count, below) for below in range(drop + 1))
    return max(0, (1 << count) - 2 * tail) / (1 << count)
