"""Whether values climb or fall evenly, and how fast. A step is no trend: it has happened, and to go on in its direction
would be twice too much.

line    the least squares line through the values; telling where its slope is more than TELLING standard errors from
        zero
step    the two levels, with the change between them wherever it fits best
trend   the line's slope where the line explains at least as much of the values' variance as the step does, else 0
"""

import math
from collections.abc import Sequence
from itertools import accumulate

TELLING = 4.0


def slope(x: Sequence[float], variance: float) -> float:
    """By how much the values change from one to the next; 0 where that is not telling. `variance`: of their noise."""
    n = len(x)
    middle = (n - 1) / 2
    spread = n * (n * n - 1) / 12
    found = sum((index - middle) * value for index, value in enumerate(x)) / spread
    by_line = found * found * spread
    return 0.0 if by_line < TELLING * TELLING * variance or by_line < _by_step(x) else found


def _by_step(x: Sequence[float]) -> float:
    """The largest sum of squares that two levels explain."""
    n, total = len(x), math.fsum(x)
    sums = list(accumulate(x))
    return max((sums[k - 1] - total * k / n) ** 2 * n / (k * (n - k)) for k in range(1, n))
