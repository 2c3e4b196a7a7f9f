"""A histogram of durations with logarithmic bins: any number of values in a fixed 33 KB.

Inter-token gaps need it: 100,000 requests of 500 tokens would be 400 MB of floats. Bins grow by 0.5 %, so a percentile is off by at most that;
the mean, the count and the maximum are exact.
"""

import math

import numpy as np

from planning.workload.arrivals import FloatArray

LOWEST_S, HIGHEST_S, GROWTH = 1e-6, 1e3, 1.005
_LOG_GROWTH = math.log(GROWTH)
_BINS = math.ceil(math.log(HIGHEST_S / LOWEST_S) / _LOG_GROWTH) + 2
"""The first bin holds what is below LOWEST_S (events that came in one chunk have a gap of 0), the last what is above HIGHEST_S."""


class Histogram:
    """Durations in seconds; `add` arrays of them, then ask for `percentile`s."""

    def __init__(self) -> None:
        self._bins = np.zeros(_BINS, dtype=np.int64)
        self._sum = 0.0
        self.count = 0
        self.max = 0.0

    def add(self, durations_s: FloatArray) -> None:
        """Counts each duration of the array."""
        if len(durations_s) == 0:
            return
        positions = np.log(np.maximum(durations_s, LOWEST_S / 2) / LOWEST_S) / _LOG_GROWTH
        indices = np.clip(np.floor(positions).astype(np.int64) + 1, 0, _BINS - 1)
        np.add.at(self._bins, indices, 1)
        self._sum += float(durations_s.sum())
        self.count += len(durations_s)
        self.max = max(self.max, float(durations_s.max()))

    @property
    def mean(self) -> float:
        """The exact mean, in seconds. Raises ZeroDivisionError when nothing was added."""
        return self._sum / self.count

    def percentile(self, percent: float) -> float:
        """The duration in seconds that `percent` of the values do not exceed, to within a bin."""
        rank = max(1, math.ceil(self.count * percent / 100))
        index = int(np.searchsorted(np.cumsum(self._bins), rank))
        if index == 0:
            return 0.0
        middle: float = LOWEST_S * GROWTH ** (index - 0.5)
        return min(middle, self.max)
