"""How long a request will wait, with honest quantiles.

A request is served in one of two ways: in its turn in its lane, or promoted, once it has waited so long. The waits
differ by an order of magnitude under overload, and which of them it will be is not certain. So the quantiles of the
estimate are those of a mixture:

    turn(q)     = (forecast in its turn + FLOOR) * exp(quantile q of the last ratios) - FLOOR      used where it ends
                before the promotion
    promoted(q') = the time of the promotion + the same of the forecast wait among the promoted, where q' is what of q
    lies beyond those that are served in their turn

The base forecasts come from the work ahead and the measured rates (`outlook.py`). A ratio is log((wait + FLOOR) /
(forecast + FLOOR)) of what really happened; one that was promoted counts as infinite, and is known as soon as it is
promoted, long before it is served. Ratios are kept by the size of the forecast (a short wait errs by more, in
proportion) and thinned in time, so that the last minutes speak and not the last seconds. A slack for each of the two
ways, which starts at 0, is added to each log and moved by each outcome, slack += gain * (missed - (1 - q)): that holds
the long-run coverage at q whatever the traffic does (conformal inference under shift: Gibbs and Candes, NeurIPS 2021).
Of those that may be promoted the quick outcomes are known first: such an outcome moves the slack only when the request
would have been promoted. The gain shrinks with the number of estimates whose outcome is not known or does not
count yet, since they will all err the same way before the first of them does. A wait that was cancelled before its p95
says nothing (it is censored); one that was cancelled after it is a miss.
"""

import heapq
import math
from bisect import bisect_left, bisect_right, insort
from collections import deque
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

FLOOR_S = 0.02
_LEVELS = (0.5, 0.95)
_WINDOW = 400
_THIN_S = 0.2
_MIN = 8
_GAIN = 0.05
_OPEN_SCALE = 20.0
_MAX_MATURING = 2_000
_BLUR = 0.05
_UNKNOWN, _UNKNOWN_FLOOR_S = math.log(3.0), 0.1
"""Where nothing is known of waits of a kind, their 95th percentile is three times the forecast; and who is next waits,
too, for the step that is under way."""


@dataclass(slots=True)
class Coverage:
    """How often waits stayed within the forecast's quantile."""

    within: int = 0
    total: int = 0
    censored: int = 0


class Way(IntEnum):
    """How a request comes to be served, by which its wait is forecast."""

    TURN = 0
    PROMOTED = 1


_BOTH_IN_TURN = (Way.TURN, Way.TURN)


class Outlook(NamedTuple):
    """The base forecasts of one request in seconds: its wait if it is served in its turn; until its promotion, and its
    wait among the promoted."""

    turn_s: float
    promotion_s: float = math.inf
    promoted_s: float = 0.0


class WaitEstimate(NamedTuple):
    """The estimate (`p50_s`, `p95_s`), and the outlook that it rests on. `ways`: how the request would be served after
    waits as long as these two."""

    outlook: Outlook
    p50_s: float
    p95_s: float
    ways: tuple[Way, Way]


class LaneEta:
    """The forecasts of one lane."""

    def __init__(self) -> None:
        self.p50 = Coverage()
        self.p95 = Coverage()
        self.span_s = math.inf
        """How far the key of the last request was from its arrival."""
        self._turn = _Ratios()
        self._promoted = _Ratios()
        self._maturing: list[tuple[float, int, WaitEstimate, float]] = []
        """Outcomes that count later, as a heap: when, a number, the estimate, and the wait."""
        self._observed = 0
        self._slack = {way: [0.0, 0.0] for way in Way}
        self.open = 0
        """Estimates whose outcome is not known yet."""

    def wait_estimate(self, outlook: Outlook) -> WaitEstimate:
        """Tells a client; the outcome will come by `observe` or `gave_up`."""
        self.open += 1
        return self.predict(outlook)

    def predict(self, outlook: Outlook) -> WaitEstimate:
        """The estimate, without a record of it."""
        ratios = self._turn.near(outlook.turn_s)
        (p50, way50), (p95, way95) = self._quantile(0, outlook, ratios), self._quantile(1, outlook, ratios)
        p50 = max(0.0, p50)
        return WaitEstimate(outlook, p50, max(p50, p95), (way50, way95))

    def promoted(self, wait_estimate: WaitEstimate, now: float) -> None:
        """The request was promoted, unplaced."""
        self._turn.add(wait_estimate.outlook.turn_s, math.inf, now)

    def observe(self, wait_estimate: WaitEstimate, wait_s: float, way: Way, now: float) -> None:
        """The request waited `wait_s` and was placed in that way. For one that was promoted, `promoted` was called
        before."""
        self.open -= 1
        outlook = wait_estimate.outlook
        if way is Way.TURN:
            self._turn.add(outlook.turn_s, _ratio(wait_s, outlook.turn_s), now)
        elif outlook.promotion_s < math.inf:
            floor_s = _blur_s(outlook)
            ratio = _ratio(max(0.0, wait_s - outlook.promotion_s), outlook.promoted_s, floor_s)
            self._promoted.add(outlook.promoted_s + floor_s, ratio, now)
        self._count(wait_estimate, wait_s)
        if way is Way.TURN and wait_estimate.ways == _BOTH_IN_TURN:
            self._move_slacks(wait_estimate, wait_s)
        else:
            self._observed += 1
            due_s = now if outlook.promotion_s == math.inf else now - wait_s + outlook.promotion_s
            heapq.heappush(self._maturing, (due_s, self._observed, wait_estimate, wait_s))
        while self._maturing and (self._maturing[0][0] <= now or len(self._maturing) > _MAX_MATURING):
            self._move_slacks(*heapq.heappop(self._maturing)[2:])

    def gave_up(self, wait_estimate: WaitEstimate, waited_s: float) -> None:
        """The request left the lane without being placed."""
        if waited_s <= wait_estimate.p95_s:
            self.spoiled()
            return
        self.open -= 1
        self._count(wait_estimate, waited_s)
        self._move_slacks(wait_estimate, waited_s)

    def spoiled(self) -> None:
        """Something else than the lane decided on this wait: its outcome says nothing of the estimate."""
        self.open -= 1
        self.p50.censored += 1
        self.p95.censored += 1

    def forget(self, since_s: float) -> None:
        """Nothing counts that was learned from then on."""
        for ratios in (self._turn, self._promoted):
            ratios.forget(since_s)

    def _count(self, wait_estimate: WaitEstimate, wait_s: float) -> None:
        for coverage, reported_s in ((self.p50, wait_estimate.p50_s), (self.p95, wait_estimate.p95_s)):
            coverage.total += 1
            coverage.within += wait_s <= reported_s

    def _move_slacks(self, wait_estimate: WaitEstimate, wait_s: float) -> None:
        gain = _GAIN / (1.0 + (self.open + len(self._maturing)) / _OPEN_SCALE)
        for index, reported_s in enumerate((wait_estimate.p50_s, wait_estimate.p95_s)):
            self._slack[wait_estimate.ways[index]][index] += gain * ((wait_s > reported_s) - (1.0 - _LEVELS[index]))

    def _quantile(self, index: int, outlook: Outlook, ratios: list[float] | None) -> tuple[float, Way]:
        """One quantile of the estimate, and the way of it. `ratios`: those of forecasts in turn of that size."""
        level, until_s = _LEVELS[index], outlook.promotion_s
        if ratios is None or (until_s == math.inf and ratios[-1] == math.inf):
            turn_s = outlook.turn_s if index == 0 else _stretched(outlook.turn_s, _UNKNOWN, _UNKNOWN_FLOOR_S)
        else:
            turn_s = _stretched(outlook.turn_s, _at(ratios, level) + self._slack[Way.TURN][index])
        if turn_s <= until_s and turn_s < math.inf:
            return turn_s, Way.TURN
        level = _left(level, ratios, until_s, outlook.turn_s)
        floor_s = _blur_s(outlook)
        ratios = self._promoted.near(outlook.promoted_s + floor_s)
        if ratios is None:
            promoted_s = outlook.promoted_s if index == 0 else _stretched(outlook.promoted_s, _UNKNOWN, floor_s)
        else:
            promoted_s = _stretched(outlook.promoted_s, _at(ratios, level) + self._slack[Way.PROMOTED][index], floor_s)
        return until_s + max(0.0, promoted_s), Way.PROMOTED


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

    def forget(self, since_s: float) -> None:
        for recent in self._by_size.values():
            recent.forget(since_s)

    def near(self, forecast_s: float) -> list[float] | None:
        """Those of forecasts of that size, or of the nearest size that has enough; ascending."""
        desired = _size(forecast_s)
        exact = self._by_size.get(desired)
        if exact is not None and len(exact.ordered) >= _MIN:
            return exact.ordered
        known = [(abs(size - desired), size) for size, recent in self._by_size.items() if len(recent.ordered) >= _MIN]
        return self._by_size[min(known)[1]].ordered if known else None


class _Recent:
    """The last ratios of one size."""

    __slots__ = ("_arrived", "_last_s", "ordered")

    def __init__(self) -> None:
        self.ordered: list[float] = []
        self._arrived: deque[tuple[float, float]] = deque()
        self._last_s = -math.inf

    def add(self, ratio: float, now: float) -> None:
        if now - self._last_s < _THIN_S and len(self.ordered) >= _MIN:
            return
        self._last_s = now
        self._arrived.append((now, ratio))
        insort(self.ordered, ratio)
        if len(self._arrived) > _WINDOW:
            self._drop(self._arrived.popleft()[1])

    def forget(self, since_s: float) -> None:
        while self._arrived and self._arrived[-1][0] >= since_s:
            self._drop(self._arrived.pop()[1])

    def _drop(self, ratio: float) -> None:
        del self.ordered[bisect_left(self.ordered, ratio)]


def _at(ordered: list[float], level: float) -> float:
    """The quantile, between two ratios in proportion; the larger of two when that is infinite. It counts one ratio
    more, since the next one is to stay within it (conformal prediction)."""
    rank = min(max(0.0, level * (len(ordered) + 1) - 1.0), len(ordered) - 1.0)
    low = int(rank)
    below, above = ordered[low], ordered[min(low + 1, len(ordered) - 1)]
    if above == math.inf:
        return below if rank == low else above
    return below + (rank - low) * (above - below)


def _left(level: float, ratios: list[float] | None, until_s: float, forecast_s: float) -> float:
    """What of a level lies beyond the waits of up to `until_s`, as a level of those."""
    if ratios is None or until_s == math.inf:
        return level
    within = bisect_right(ratios, _ratio(until_s, forecast_s)) / len(ratios)
    return max(0.0, (level - within) / (1.0 - within)) if within < 1.0 else level


def _blur_s(outlook: Outlook) -> float:
    """The floor of ratios among the promoted: the forecast reaches as far ahead as the promotion is, and what arrives
    until then is not known."""
    return max(FLOOR_S, _BLUR * outlook.promotion_s)


def _ratio(wait_s: float, forecast_s: float, floor_s: float = FLOOR_S) -> float:
    return math.log((wait_s + floor_s) / (forecast_s + floor_s))


def _stretched(forecast_s: float, ratio: float, floor_s: float = FLOOR_S) -> float:
    return (forecast_s + floor_s) * math.exp(ratio) - floor_s if ratio < math.inf else math.inf


def _size(forecast_s: float) -> int:
    """Forecasts within a factor of four are of one size."""
    return round(math.log(forecast_s + FLOOR_S, 4))
