"""The latencies that a scaling policy may ask for, measured where a model's decisions are taken: over all gateways,
as the scheduler learns of them."""

from collections.abc import Sequence

import numpy as np

from deployments.cell.scaling_facts import LatencySignals

MAX = 10_000


class ValueWindow:
    """Keeps the last `maximum` values with their times (seconds)."""

    def __init__(self, span_s: float, maximum: int = MAX) -> None:
        self._span_s = span_s
        self._times = np.full(maximum, -np.inf)
        self._values = np.zeros(maximum)
        self._next = 0

    def add(self, value: float, now: float) -> None:
        """Adds a value; beyond `maximum` the oldest goes."""
        self._times[self._next], self._values[self._next] = now, value
        self._next = (self._next + 1) % len(self._times)

    def quantiles(self, levels: Sequence[float], now: float, span_s: float | None = None) -> tuple[int, list[float]]:
        """How many values the last `span_s` seconds (by default the window's own, at most) brought, and their quantiles
        (empty without values)."""
        span_s = self._span_s if span_s is None else min(span_s, self._span_s)
        recent = self._values[self._times >= now - span_s]
        return len(recent), [float(value) for value in np.quantile(recent, levels)] if len(recent) else []


LONGEST_SPAN_S = 3_600.0


class LatencyWindow:
    """The last of one model's, at most an hour of them."""

    def __init__(self) -> None:
        self._ttft_s = ValueWindow(LONGEST_SPAN_S)
        self._tpot_s = ValueWindow(LONGEST_SPAN_S)

    def first_token(self, ttft_s: float, now: float) -> None:
        self._ttft_s.add(ttft_s, now)

    def ended(self, decode_s: float, tokens: float, now: float) -> None:
        """A sequence of so many tokens ended; what came after the first took `decode_s`."""
        if tokens > 1 and decode_s > 0:
            self._tpot_s.add(decode_s / (tokens - 1), now)

    def over(self, span_s: float, now: float) -> LatencySignals:
        requests, ttft_s = _quantiles(self._ttft_s, (0.5, 0.9, 0.99), span_s, now)
        _, tpot_s = _quantiles(self._tpot_s, (0.9,), span_s, now)
        return LatencySignals(span_s, requests, *ttft_s, *tpot_s)


def _quantiles(window: ValueWindow, levels: Sequence[float], span_s: float, now: float) -> tuple[int, list[float]]:
    count, values = window.quantiles(levels, now, span_s)
    return count, values or [0.0] * len(levels)
