"""The last minute's values of one thing, in arrays that are there from the start: their memory does not grow with the traffic."""

from collections.abc import Sequence

import numpy as np

MOST = 10_000


class Window:
    """Keeps the last `most` values with their times (seconds)."""

    def __init__(self, span_s: float, most: int = MOST) -> None:
        self._span_s = span_s
        self._times = np.full(most, -np.inf)
        self._values = np.zeros(most)
        self._next = 0

    def add(self, value: float, now: float) -> None:
        """Adds a value; beyond `most` the oldest goes."""
        self._times[self._next], self._values[self._next] = now, value
        self._next = (self._next + 1) % len(self._times)

    def quantiles(self, levels: Sequence[float], now: float, span_s: float | None = None) -> tuple[int, list[float]]:
        """How many values the last `span_s` seconds (by default the window's own, at most) brought, and their quantiles (empty without values)."""
        span_s = self._span_s if span_s is None else min(span_s, self._span_s)
        recent = self._values[self._times >= now - span_s]
        return len(recent), [float(value) for value in np.quantile(recent, levels)] if len(recent) else []
