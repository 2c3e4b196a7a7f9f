"""Whether a promoted law is taken back: how fast the SLO's budget burns under it. Pure.

    burn of a class = missed / (kept + missed) / (1 - attainment), over the last span_s seconds; the worst class counts

The first span after the promotion is the old law's doing as much as the new one's, so nothing is said in it.
"""

from collections import deque

from autoscaling.signals.signals import Signals

LEAST_MISSED = 5
"""Fewer missed promises say nothing."""

Counts = dict[str, tuple[int, int, float]]


class Probation:
    """Of a law that was promoted at `since_s`: for `within_s` seconds, taken back at `burn`."""

    def __init__(self, since_s: float, within_s: float, span_s: float, burn: float) -> None:
        self.until_s = since_s + within_s
        self._since_s = since_s
        self._span_s = span_s
        self._most = burn
        self._epoch: int | None = None
        self._seen: deque[tuple[float, Counts]] = deque()
        self.burn = 0.0

    def look(self, signals: Signals) -> bool:
        """Takes a moment into account. Whether the law has failed."""
        if signals.epoch != self._epoch:
            self._seen.clear()  # the counts began anew
            self._epoch = signals.epoch
        self._seen.append((signals.at_s, _counts(signals)))
        while len(self._seen) > 1 and self._seen[1][0] <= signals.at_s - self._span_s:
            self._seen.popleft()
        before, now = self._seen[0][1], self._seen[-1][1]
        self.burn = max((_burn(before.get(name, (0, 0, 0.0)), now[name]) for name in now), default=0.0)
        return self._since_s + self._span_s <= signals.at_s <= self.until_s and self.burn >= self._most


def _counts(signals: Signals) -> Counts:
    counts: Counts = {}
    for flow in signals.flows:
        kept, missed, _ = counts.get(flow.traffic_class, (0, 0, 0.0))
        counts[flow.traffic_class] = (kept + flow.kept, missed + flow.missed, 1.0 - flow.attainment)
    return counts


def _burn(before: tuple[int, int, float], now: tuple[int, int, float]) -> float:
    kept, missed = now[0] - before[0], now[1] - before[1]
    if missed < LEAST_MISSED or kept < 0:
        return 0.0
    return missed / (kept + missed) / max(now[2], 1e-6)
