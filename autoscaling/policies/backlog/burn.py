"""How fast the SLO's budget burns: SLOs missed, against those that the attainment allows to miss, over five minutes and
over the last one.

Both have to be too fast, so that neither a few misses among few requests nor what is over already adds a replica
(multi-window burn rates: The Site Reliability Workbook, chapter 5). What was missed before the last replica became
ready is no argument for a further one, so both begin anew then.

How long requests of the class waited comes from Little's law: waiting requests, summed over the seconds, by the
requests that came to its lanes.
"""

from collections import deque
from dataclasses import dataclass

from autoscaling.signals.signals import Signals
from deployments.scheduling.lanes import PROMOTED

LONG_S, SHORT_S = 300.0, 60.0
_STEP_S = 5.0
_MIN_MISSED = 5


@dataclass(frozen=True, slots=True)
class _Class:
    """Counts of one class; `waited`: seconds that requests spent in the lanes that it uses, `came`: how many came to
    those lanes."""

    met: int
    missed: int
    allowed: float
    slo_s: float
    waited_s: float
    came: int


@dataclass(frozen=True, slots=True)
class Burning:
    """The class whose SLOs are missed fastest, as a multiple of what its SLO allows (the slower of the two windows),
    and how long a request of its lanes waited on average, as a share of its SLO."""

    traffic_class: str
    rate: float
    wait_share: float


_NONE = Burning("", 0.0, 0.0)


class Burn:
    """`worst`: of all classes. `seen_s`: for how long it has looked since the last replica became ready."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, dict[str, _Class]]] = deque()
        self._ready = 0
        self._at_s: float | None = None
        self._waited_s: dict[str, float] = {}
        self.worst = _NONE
        self.seen_s = 0.0

    def look(self, signals: Signals) -> None:
        """Takes a moment into account."""
        now = signals.at_s
        passed = 0.0 if self._at_s is None else now - self._at_s
        self._at_s = now
        for lane in signals.lanes:
            self._waited_s[lane.name] = self._waited_s.get(lane.name, 0.0) + lane.waiting * passed
        if signals.ready > self._ready:
            self._seen.clear()
        self._ready = signals.ready
        if self._seen and now - self._seen[-1][0] < _STEP_S:
            return
        self._seen.append((now, self._counts(signals)))
        while len(self._seen) > 1 and self._seen[1][0] <= now - LONG_S:
            self._seen.popleft()
        self.seen_s = now - self._seen[0][0]
        short = next(
            before for at_s, before in reversed(self._seen) if at_s <= now - SHORT_S or at_s == self._seen[0][0]
        )
        long, last = self._seen[0][1], self._seen[-1][1]
        burning = [_burning(name, long.get(name), short.get(name), one) for name, one in last.items()]
        self.worst = max(burning, key=lambda one: one.rate, default=_NONE)

    def _counts(self, signals: Signals) -> dict[str, _Class]:
        came = {lane.name: 0 for lane in signals.lanes}
        lanes: dict[str, set[str]] = {}
        for flow in signals.flows:
            came[flow.lane] = came.get(flow.lane, 0) + flow.arrived
            if flow.arrived:
                lanes.setdefault(flow.traffic_class, set()).add(flow.lane)
        promoted_s = self._waited_s.get(PROMOTED, 0.0)
        counts: dict[str, _Class] = {}
        for flow in signals.flows:
            name, used = flow.traffic_class, lanes.get(flow.traffic_class, set())
            old = counts.get(name)
            waited_s = promoted_s + sum(self._waited_s.get(lane, 0.0) for lane in used)
            counts[name] = _Class(
                flow.met + (old.met if old else 0),
                flow.missed + (old.missed if old else 0),
                max(1e-6, signals.allowed(flow.traffic_class)),
                flow.slo_s,
                waited_s,
                sum(came[lane] for lane in used),
            )
        return counts


def _burning(name: str, long: _Class | None, short: _Class | None, now: _Class) -> Burning:
    rate = min(_missed(long, now), _missed(short, now)) / now.allowed
    came = now.came - (long.came if long else 0)
    waited_s = now.waited_s - (long.waited_s if long else 0.0)
    return Burning(name, rate, waited_s / came / now.slo_s if came > 0 and now.slo_s > 0 else 0.0)


def _missed(before: _Class | None, now: _Class) -> float:
    """The share of a class's promises that was missed in between."""
    met, missed = (now.met - before.met, now.missed - before.missed) if before else (now.met, now.missed)
    return 0.0 if missed < _MIN_MISSED or met < 0 else missed / (met + missed)
