"""How long a request will wait, with honest quantiles.

A base forecast comes from the work ahead and the measured rate (`admission.Forecasts` computes it). What really happened teaches the rest, for each
lane and each of two ways to be served, in time or late:

    ratio  = log((wait + FLOOR) / (forecast + FLOOR))
    eta(q) = (forecast + FLOOR) * exp(quantile of the last ratios at level q + slack(q)) - FLOOR

Ratios are kept by the size of the forecast (a short wait errs by more, in proportion) and thinned in time, so that the last minutes speak and not the
last seconds. The slack, which starts at 0, is moved by each outcome, slack += gain * (missed - (1 - q)): that holds the long-run coverage at q
whatever the traffic does (conformal inference under shift: Gibbs and Candes, NeurIPS 2021). The gain shrinks with the number of promises still
open, since they will all err the same way before the first of them is known. A wait that was cancelled before its p95 says nothing (it is
censored); one that was cancelled after it is a miss.
"""

import math
from bisect import bisect_left, insort
from collections import deque
from dataclasses import dataclass

FLOOR_S = 0.02
_LEVELS = (0.5, 0.95)
_WINDOW = 400
_THIN_S = 0.2
_LEAST = 8
_GAIN = 0.05
_OPEN_SCALE = 20.0


@dataclass(slots=True)
class Coverage:
    """How often waits stayed within the forecast's quantile."""

    within: int = 0
    total: int = 0
    censored: int = 0


TIMELY, LATE = 0, 1
"""The two ways to be served: before one's latest start, or after all that can still make theirs. Each errs in its own way, and learns apart."""


class LaneEta:
    """The forecasts of one lane."""

    def __init__(self) -> None:
        self.p50 = Coverage()
        self.p95 = Coverage()
        self._modes = (_Mode(), _Mode())
        self._open = 0

    def predict(self, forecast_s: float, mode: int = TIMELY) -> tuple[float, float]:
        """The p50 and p95 of a wait whose base forecast is `forecast_s`. Promises nothing: see `promised`."""
        return self._modes[mode].predict(forecast_s)

    def promised(self) -> None:
        """A forecast was told to a client: its outcome will come by `observe` or `gave_up`."""
        self._open += 1

    def observe(self, forecast_s: float, mode: int, promised: tuple[float, float], wait_s: float, now: float) -> None:
        """A request waited `wait_s` and was placed."""
        self._open -= 1
        self._judge(mode, promised, wait_s)
        self._modes[mode].learn(forecast_s, wait_s, now)

    def gave_up(self, mode: int, promised: tuple[float, float], waited_s: float) -> None:
        """A request left the lane without being placed."""
        self._open -= 1
        if waited_s > promised[1]:
            self._judge(mode, promised, waited_s)
        else:
            self.p50.censored += 1
            self.p95.censored += 1

    def _judge(self, mode: int, promised: tuple[float, float], wait_s: float) -> None:
        gain = _GAIN / (1.0 + self._open / _OPEN_SCALE)
        for index, coverage in enumerate((self.p50, self.p95)):
            missed = wait_s > promised[index]
            coverage.total += 1
            coverage.within += not missed
            self._modes[mode].slack[index] += gain * (missed - (1.0 - _LEVELS[index]))


class _Mode:
    """What was learned of one way to be served."""

    __slots__ = ("_by_size", "slack")

    def __init__(self) -> None:
        self.slack = [0.0, 0.0]
        self._by_size: dict[int, _Ratios] = {}

    def predict(self, forecast_s: float) -> tuple[float, float]:
        base = forecast_s + FLOOR_S
        ratios = self._nearest(forecast_s)
        if ratios is None:
            return forecast_s, 2.0 * base
        p50, p95 = (base * math.exp(ratios.quantile(level) + slack) - FLOOR_S for level, slack in zip(_LEVELS, self.slack, strict=True))
        return max(0.0, p50), max(0.0, p50, p95)

    def learn(self, forecast_s: float, wait_s: float, now: float) -> None:
        size = _size(forecast_s)
        ratios = self._by_size.get(size)
        if ratios is None:
            ratios = self._by_size[size] = _Ratios()
        ratios.add(math.log((wait_s + FLOOR_S) / (forecast_s + FLOOR_S)), now)

    def _nearest(self, forecast_s: float) -> "_Ratios | None":
        wanted = _size(forecast_s)
        exact = self._by_size.get(wanted)
        if exact is not None and len(exact.ordered) >= _LEAST:
            return exact
        known = [(abs(size - wanted), size) for size, ratios in self._by_size.items() if len(ratios.ordered) >= _LEAST]
        return self._by_size[min(known)[1]] if known else None


class _Ratios:
    """The last ratios, at most one each `_THIN_S`."""

    __slots__ = ("_arrived", "_last_s", "ordered")

    def __init__(self) -> None:
        self.ordered: list[float] = []
        self._arrived: deque[float] = deque()
        self._last_s = -math.inf

    def add(self, ratio: float, now: float) -> None:
        if now - self._last_s < _THIN_S and len(self.ordered) >= _LEAST:
            return
        self._last_s = now
        self._arrived.append(ratio)
        insort(self.ordered, ratio)
        if len(self._arrived) > _WINDOW:
            del self.ordered[bisect_left(self.ordered, self._arrived.popleft())]

    def quantile(self, level: float) -> float:
        rank = level * (len(self.ordered) - 1)
        low = int(rank)
        high = min(low + 1, len(self.ordered) - 1)
        return self.ordered[low] + (rank - low) * (self.ordered[high] - self.ordered[low])


def _size(forecast_s: float) -> int:
    """Forecasts within a factor of four are of one size."""
    return round(math.log(forecast_s + FLOOR_S, 4))
