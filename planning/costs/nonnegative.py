"""Fits costs, none of which can be negative: non-negative least squares (SciPy's `nnls`), reweighted in one of two
ways.

- `least_relative_error`, for tables: each row is divided by its own time, and few odd points weigh little (iteratively
  reweighted towards the least sum of |relative error|).
- `least_deviance`, for steps that were measured while they happened: the weights are those of a Poisson regression with
  identity link (one by what is predicted), whose predictions add up to the total time that was measured. What a noisy
  machine adds to steps is a part of what it can do.
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import nnls

Matrix = NDArray[np.float64]
_REWEIGHTINGS = 12
_MIN_ERROR = 1e-3
"""Errors below this are as good as none."""
_MIN_SHARE = 1e-3


def least_relative_error(rows: Matrix, times: Matrix, relative_to: Matrix | None = None) -> Matrix:
    """The unknowns x >= 0 with rows @ x close to `times`, errors being measured as a share of `relative_to` (default:
    of `times`), all above 0."""
    base = times if relative_to is None else relative_to
    relative, desired = rows / base[:, None], times / base
    ones = np.ones(len(times))
    return _reweighted(relative, desired, ones, lambda found: np.maximum(np.abs(found - desired), _MIN_ERROR))


def least_deviance(rows: Matrix, times: Matrix) -> Matrix:
    """The unknowns x >= 0 of rows @ x close to `times`, all above 0, with the sum of the predictions that of the times
    (where no x is 0)."""
    minimum = _MIN_SHARE * times.mean()
    return _reweighted(rows, times, np.maximum(times, minimum), lambda found: np.maximum(found, minimum))


def _reweighted(rows: Matrix, desired: Matrix, variance: Matrix, variance_of: Callable[[Matrix], Matrix]) -> Matrix:
    """Least squares again and again, each row weighted by the `variance` that what it predicted last has."""
    scale = np.abs(rows).max(axis=0)
    scale[scale == 0] = 1.0
    scaled, found = rows / scale, np.zeros(rows.shape[1])
    for _ in range(_REWEIGHTINGS):
        weight = 1 / np.sqrt(variance)
        found, _ = nnls(scaled * weight[:, None], desired * weight)
        variance = variance_of(scaled @ found)
    result: Matrix = found / scale
    return result
