"""The latencies of the last seconds, for scaling laws that look at them."""

from collections import deque

import numpy as np

from autoscaling.signals.signals import Latencies


class LatencyWatch:
    """Of the last `span_s` seconds."""

    def __init__(self, span_s: float) -> None:
        self._span_s = span_s
        self._ttft: deque[tuple[float, float]] = deque()
        self._tpot: deque[tuple[float, float]] = deque()

    def first_token(self, now: float, ttft_s: float) -> None:
        """A first token came."""
        self._ttft.append((now, ttft_s))

    def finished(self, now: float, tpot_s: float) -> None:
        """An answer of more than one token ended."""
        self._tpot.append((now, tpot_s))

    def latencies(self, now: float) -> Latencies:
        """As of now."""
        for values in (self._ttft, self._tpot):
            while values and values[0][0] < now - self._span_s:
                values.popleft()
        p50, p90, p99 = _quantiles(self._ttft, (0.5, 0.9, 0.99))
        return Latencies(self._span_s, len(self._ttft), p50, p90, p99, _quantiles(self._tpot, (0.9,))[0])


def _quantiles(values: deque[tuple[float, float]], levels: tuple[float, ...]) -> list[float]:
    return [float(value) for value in np.quantile([value for _, value in values], levels)] if values else [0.0] * len(levels)
