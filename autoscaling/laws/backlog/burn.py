"""How fast the SLO's budget burns: promises missed in the last minute, against those that the attainment allows to miss.

What was missed before the last replica became ready is no argument for a further one, so a minute begins anew then.
"""

from collections import deque

from autoscaling.signals.signals import Signals

_SPAN_S = 60.0
_LEAST_MISSED = 5


class Burn:
    """`rate`: 1 misses exactly what is allowed; the worst class counts."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, dict[str, tuple[int, int]]]] = deque()
        self._ready = 0
        self.rate = 0.0

    def look(self, signals: Signals) -> None:
        """Takes a moment into account."""
        counts: dict[str, tuple[int, int]] = {}
        allowed: dict[str, float] = {}
        for flow in signals.flows:
            kept, missed = counts.get(flow.traffic_class, (0, 0))
            counts[flow.traffic_class] = (kept + flow.kept, missed + flow.missed)
            allowed[flow.traffic_class] = 1.0 - flow.attainment
        if signals.ready > self._ready:
            self._seen.clear()
        self._ready = signals.ready
        self._seen.append((signals.at_s, counts))
        while len(self._seen) > 1 and self._seen[1][0] <= signals.at_s - _SPAN_S:
            self._seen.popleft()
        before = self._seen[0][1]
        self.rate = max((self._of(before.get(name, (0, 0)), now, allowed[name]) for name, now in counts.items()), default=0.0)

    @staticmethod
    def _of(before: tuple[int, int], now: tuple[int, int], allowed: float) -> float:
        kept, missed = now[0] - before[0], now[1] - before[1]
        if missed < _LEAST_MISSED or kept < 0:
            return 0.0
        return missed / (kept + missed) / max(allowed, 1e-6)
