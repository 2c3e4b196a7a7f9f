"""How fast the SLO's budget burns: promises missed, against those that the attainment allows to miss, over five minutes and over the last one.

Both have to be too fast, so that neither a few misses among few requests nor what is over already adds a replica (multi-window burn rates: The Site
Reliability Workbook, chapter 5). What was missed before the last replica became ready is no argument for a further one, so both begin anew then.
"""

from collections import deque

from autoscaling.signals.signals import Signals

LONG_S, SHORT_S = 300.0, 60.0
_STEP_S = 5.0
_LEAST_MISSED = 5

_Counts = dict[str, tuple[int, int]]


class Burn:
    """`rate`: the slower of the two; 1 misses exactly what is allowed; the worst class counts."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, _Counts]] = deque()
        self._ready = 0
        self.rate = 0.0

    def look(self, signals: Signals) -> None:
        """Takes a moment into account."""
        now = signals.at_s
        if signals.ready > self._ready:
            self._seen.clear()
        self._ready = signals.ready
        if self._seen and now - self._seen[-1][0] < _STEP_S:
            return
        counts: _Counts = {}
        allowed: dict[str, float] = {}
        for flow in signals.flows:
            kept, missed = counts.get(flow.traffic_class, (0, 0))
            counts[flow.traffic_class] = (kept + flow.kept, missed + flow.missed)
            allowed[flow.traffic_class] = max(1e-6, 1.0 - flow.attainment)
        self._seen.append((now, counts))
        while len(self._seen) > 1 and self._seen[1][0] <= now - LONG_S:
            self._seen.popleft()
        short = next(before for at_s, before in reversed(self._seen) if at_s <= now - SHORT_S or at_s == self._seen[0][0])
        long = self._seen[0][1]
        rates = [min(_missed(long, counts, name), _missed(short, counts, name)) / allowed[name] for name in counts]
        self.rate = max(rates, default=0.0)


def _missed(before: _Counts, now: _Counts, name: str) -> float:
    """The share of a class's promises that was missed in between."""
    old, new = before.get(name, (0, 0)), now[name]
    kept, missed = new[0] - old[0], new[1] - old[1]
    return 0.0 if missed < _LEAST_MISSED or kept < 0 else missed / (kept + missed)
