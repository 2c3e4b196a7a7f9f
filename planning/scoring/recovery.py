"""How long promises stayed broken: the longest stretch in which too few of those that arrived were answered in time."""

import numpy as np
from numpy.typing import NDArray

BIN_S = 10.0


def recovery_s(arrived_s: NDArray[np.float64], kept: NDArray[np.bool_], attainment: float) -> float:
    """Seconds, in bins of `BIN_S`; a bin without arrivals goes on with what the one before was."""
    if not len(arrived_s):
        return 0.0
    bins = (arrived_s // BIN_S).astype(np.int64)
    bins -= bins.min()
    total = np.bincount(bins)
    good = np.bincount(bins, weights=kept)
    longest = run = 0
    broken = False
    for count, kept_count in zip(total.tolist(), good.tolist(), strict=True):
        if count:
            broken = kept_count < attainment * count
        run = run + 1 if broken else 0
        longest = max(longest, run)
    return longest * BIN_S
