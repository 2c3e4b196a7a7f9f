"""How much of a surge is still there when a replica that was asked for at its sight takes work: learned from the surges
that there were.

    e       rate over the chosen span - rate over ten minutes, where it is more                              the surge,
            as the policy sees it
    a       rate of the minute that begins a start-up time later - rate over the same ten minutes            what came
            of it
    share   (P + sum e * a) / (P + sum e^2), within 0 .. 1: least squares through the origin                 one for
            short spans, one for longer

A salvo of one client is over in half a minute, and whoever starts replicas for it pays for them after it is gone; a new
crowd stays. Nobody can tell one from the other while it begins, but the same service has the same kind again and again.
P is a belief that they stay, worth one replica's surge of some minutes; sums are forgotten by half a day. Samples
overlap, so each counts for the share of a start-up time that it covers.
"""

from collections import deque

from autoscaling.policies.backlog.demand import BUCKET_S, Demand
from autoscaling.signals.signals import Signals

_SHORT_S = 60.0
_JUDGED_S = 60.0
_BELIEF = 4.0
_FORGOTTEN_S = 43_200.0


class Persistence:
    """Looks on at every closed bucket."""

    def __init__(self) -> None:
        self._epoch: int | None = None
        self._work: deque[tuple[float, float]] = deque()
        self._surges: deque[tuple[float, float, float, bool]] = deque()
        self._sums = {True: (0.0, 0.0), False: (0.0, 0.0)}

    def look(self, signals: Signals, demand: Demand, start_s: float, replica_per_s: float | None) -> None:
        """`start_s`: what a start takes; `replica_per_s`: a replica's capacity, the unit of all sums (None: unknown,
        and nothing is learned)."""
        now, work = signals.at_s, signals.arrived_work
        if self._epoch != signals.epoch or (self._work and work < self._work[-1][1]):
            self._epoch = signals.epoch
            self._work.clear()
            self._surges.clear()
        if replica_per_s is None or (self._work and now - self._work[-1][0] < BUCKET_S):
            return
        self._work.append((now, work))
        kept = 0.5 ** (BUCKET_S / _FORGOTTEN_S)
        self._sums = {short: (kept * ea, kept * ee) for short, (ea, ee) in self._sums.items()}
        self._judge(now, start_s, replica_per_s)
        surge = (demand.rate - demand.usual) / replica_per_s
        if surge > 0 and demand.trend == 0.0:
            self._surges.append((now, demand.usual, surge, demand.span_s <= _SHORT_S))

    def share(self, span_s: float) -> float:
        """Of a surge that is seen over so many seconds: what to count on."""
        ea, ee = self._sums[span_s <= _SHORT_S]
        return min(1.0, max(0.0, (_BELIEF + ea) / (_BELIEF + ee)))

    def _judge(self, now: float, start_s: float, replica_per_s: float) -> None:
        while self._surges and now >= self._surges[0][0] + start_s + _JUDGED_S:
            at_s, usual, surge, short = self._surges.popleft()
            self._forget_before(at_s + start_s)
            began_s, before = self._work[0]
            came = ((self._work[-1][1] - before) / max(BUCKET_S, now - began_s) - usual) / replica_per_s
            weight = BUCKET_S / (start_s + _JUDGED_S)
            ea, ee = self._sums[short]
            self._sums[short] = (ea + weight * surge * came, ee + weight * surge * surge)
        if not self._surges:
            self._forget_before(now)

    def _forget_before(self, at_s: float) -> None:
        """All but the last count before that."""
        while len(self._work) > 1 and self._work[1][0] <= at_s:
            self._work.popleft()
