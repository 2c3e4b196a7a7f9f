"""How long a request will wait, with honest quantiles.

A request is served in one of two ways: in time, behind those of its lane that can still meet their deadlines; or late, after all of those or as one
of the promoted. The two waits differ by an order of magnitude under overload, and which of them it will be is not certain. So the told quantiles are
those of a mixture:

    timely(q) = (forecast in time + FLOOR) * exp(quantile q of the last ratios) - FLOOR        told where it ends before the latest start
    late(q)   = (forecast late + FLOOR) * exp(quantile q' of the last ratios) - FLOOR           else; q' is what of q lies beyond the timely ones

The base forecasts come from the work ahead and the measured rates (`outlook.py`). A ratio is log((wait + FLOOR) / (forecast + FLOOR)) of what really
happened; one that was forecast in time and came late counts as infinite, and is known as soon as its latest start has passed, long before it is
served. Ratios are kept by the size of the forecast (a short wait errs by more, in proportion) and thinned in time, so that the last minutes speak and
not the last seconds. A slack, which starts at 0, is added to each log and moved by each outcome, slack += gain * (missed - (1 - q)): that holds the
long-run coverage at q whatever the traffic does (conformal inference under shift: Gibbs and Candes, NeurIPS 2021). The gain shrinks with the number
of promises still open, since they will all err the same way before the first of them is known. A wait that was cancelled before its p95 says nothing
(it is censored); one that was cancelled after it is a miss.
"""

import math
from bisect import bisect_left, bisect_right, insort
from collections import deque
from dataclasses import dataclass
from typing import NamedTuple

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


class Outlook(NamedTuple):
    """The base forecasts of one request in seconds: its wait if it is served in time, until its latest start, and its wait if it comes late."""

    timely_s: float
    slack_s: float
    late_s: float


class Promise(NamedTuple):
    """What was told (`p50_s`, `p95_s`), on which outlook. `late`: which of the two lies beyond the latest start."""

    outlook: Outlook
    p50_s: float
    p95_s: float
    late: tuple[bool, bool]


class LaneEta:
    """The forecasts of one lane."""

    def __init__(self) -> None:
        self.p50 = Coverage()
        self.p95 = Coverage()
        self.slack_s = math.inf
        """What the last request had until its latest start."""
        self._timely = _Ratios()
        self._late = _Ratios()
        self._slack = {False: [0.0, 0.0], True: [0.0, 0.0]}
        self.open = 0
        """Promises whose outcome is not known yet."""

    def promise(self, outlook: Outlook) -> Promise:
        """Tells a client; the outcome will come by `observe` or `gave_up`."""
        self.open += 1
        self.slack_s = outlook.slack_s
        return self.predict(outlook)

    def predict(self, outlook: Outlook) -> Promise:
        """What would be told."""
        ratios = self._timely.near(outlook.timely_s)
        (p50, late50), (p95, late95) = self._quantile(0, outlook, ratios), self._quantile(1, outlook, ratios)
        p50 = max(0.0, p50)
        return Promise(outlook, p50, max(p50, p95), (late50, late95))

    def came_late(self, promise: Promise, now: float) -> None:
        """The request has passed its latest start, unplaced."""
        self._timely.add(promise.outlook.timely_s, math.inf, now)

    def observe(self, promise: Promise, wait_s: float, came_late: bool, now: float) -> None:
        """The request waited `wait_s` and was placed; `came_late` was told of it or not."""
        self.open -= 1
        self._judge(promise, wait_s)
        outlook = promise.outlook
        if came_late:
            self._late.add(outlook.late_s, _ratio(wait_s, outlook.late_s), now)
        else:
            self._timely.add(outlook.timely_s, _ratio(wait_s, outlook.timely_s), now)

    def gave_up(self, promise: Promise, waited_s: float) -> None:
        """The request left the lane without being placed."""
        self.open -= 1
        if waited_s > promise.p95_s:
            self._judge(promise, waited_s)
        else:
            self.p50.censored += 1
            self.p95.censored += 1

    def _judge(self, promise: Promise, wait_s: float) -> None:
        gain = _GAIN / (1.0 + self.open / _OPEN_SCALE)
        for index, (coverage, told_s) in enumerate(((self.p50, promise.p50_s), (self.p95, promise.p95_s))):
            missed = wait_s > told_s
            coverage.total += 1
            coverage.within += not missed
            self._slack[promise.late[index]][index] += gain * (missed - (1.0 - _LEVELS[index]))

    def _quantile(self, index: int, outlook: Outlook, ratios: list[float] | None) -> tuple[float, bool]:
        """One told quantile, and whether it lies beyond the latest start. `ratios`: those of forecasts in time of that size."""
        level, slack_s = _LEVELS[index], outlook.slack_s
        if ratios is None:
            timely_s = outlook.timely_s if index == 0 else 2.0 * (outlook.timely_s + FLOOR_S)
        else:
            timely_s = _stretched(outlook.timely_s, _at(ratios, level) + self._slack[False][index])
        if timely_s <= slack_s and timely_s < math.inf:
            return timely_s, False
        in_time = 0.0 if ratios is None or slack_s == math.inf else bisect_right(ratios, _ratio(slack_s, outlook.timely_s)) / len(ratios)
        beyond = max(0.0, (level - in_time) / (1.0 - in_time)) if in_time < 1.0 else level
        known = self._late.near(outlook.late_s)
        ratio = _at(known, beyond) if known is not None else 0.0
        return max(min(slack_s, outlook.late_s), _stretched(outlook.late_s, ratio + self._slack[True][index])), True


class _Ratios:
    """The last ratios, by the size of their forecast, at most one each `_THIN_S`."""

    def __init__(self) -> None:
        self._by_size: dict[int, _Recent] = {}

    def add(self, forecast_s: float, ratio: float, now: float) -> None:
        size = _size(forecast_s)
        recent = self._by_size.get(size)
        if recent is None:
            recent = self._by_size[size] = _Recent()
        recent.add(ratio, now)

    def near(self, forecast_s: float) -> list[float] | None:
        """Those of forecasts of that size, or of the nearest size that has enough; ascending."""
        wanted = _size(forecast_s)
        exact = self._by_size.get(wanted)
        if exact is not None and len(exact.ordered) >= _LEAST:
            return exact.ordered
        known = [(abs(size - wanted), size) for size, recent in self._by_size.items() if len(recent.ordered) >= _LEAST]
        return self._by_size[min(known)[1]].ordered if known else None


class _Recent:
    """The last ratios of one size."""

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


def _at(ordered: list[float], level: float) -> float:
    """The quantile, between two ratios in proportion; the larger of two when that is infinite."""
    rank = level * (len(ordered) - 1)
    low = int(rank)
    below, above = ordered[low], ordered[min(low + 1, len(ordered) - 1)]
    if above == math.inf:
        return below if rank == low else above
    return below + (rank - low) * (above - below)


def _ratio(wait_s: float, forecast_s: float) -> float:
    return math.log((wait_s + FLOOR_S) / (forecast_s + FLOOR_S))


def _stretched(forecast_s: float, ratio: float) -> float:
    return (forecast_s + FLOOR_S) * math.exp(ratio) - FLOOR_S if ratio < math.inf else math.inf


def _size(forecast_s: float) -> int:
    """Forecasts within a factor of four are of one size."""
    return round(math.log(forecast_s + FLOOR_S, 4))
