"""What the SLOs of the classes ask for: how long waiting requests would wait, how fast SLOs are missed, and whether one
more replica would help.

Waits: the work ahead in a lane over what the replicas do, against the share `target_wait` of the tightest SLO in it.

Burn rate: missed SLOs against those that the attainment allows, over five minutes and over the last one. Both must be
too high, so that neither a few misses among few requests nor a problem that is over adds a replica (multi-window burn
rates: The Site Reliability Workbook, chapter 5). Both windows begin anew when a replica becomes ready: earlier misses
are no reason for a further one. How long requests of a class wait follows from Little's law: waiting requests, summed
over the seconds, by the requests that came to its lanes.

Relief: only waiting requests are served sooner by one more replica, and a step that changed nothing is not repeated.

    nothing waits     requests of the class that burns wait in its lanes for less than WAITS of its SLO, on average
    helped nothing    JUDGED_S after the replica of the last such step became ready, SLOs of the same class are missed
                      at KEPT or more of the earlier rate, and no replica has more work than each had then

What helped nothing is not tried again for AGAIN_S, unless the arriving work has grown by GROWN. No number of replicas
meets an SLO that is shorter than the first token of an idle engine; an operator must change it.
"""

import math
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from autoscaling.policies.policy import Concern
from autoscaling.signals.signals import Signals
from cluster.spec import Backlog
from deployments.scheduling.lanes import PROMOTED
from deployments.scheduling.snapshot import FlowStats

_MIN_SHARE = 0.01


@dataclass(frozen=True, slots=True)
class LaneWait:
    """`work_ahead`: of this lane and of those with tighter SLOs. `target_s`: how long its requests may wait."""

    name: str
    work_ahead: float
    target_s: float


class LaneTargets:
    """How long each lane may wait, by the SLOs of what arrived there lately."""

    def __init__(self, settings: Backlog) -> None:
        self.settings = settings
        self._counts: dict[tuple[str, str], int] = {}
        self._slo_s: dict[str, float] = {}
        self._next_s = -math.inf

    def look(self, signals: Signals) -> None:
        """A class counts if it is at least a hundredth of a lane's arrivals of a minute."""
        if signals.at_s < self._next_s:
            return
        self._next_s = signals.at_s + 60.0 if self._slo_s else signals.at_s
        flows: dict[str, list[tuple[FlowStats, int]]] = {}
        for flow in signals.flows:
            new = flow.arrived - self._counts.get((flow.lane, flow.traffic_class), 0)
            flows.setdefault(flow.lane, []).append((flow, new if new >= 0 else flow.arrived))
            self._counts[flow.lane, flow.traffic_class] = flow.arrived
        for lane, found in flows.items():
            total = sum(new for _, new in found)
            slos = [flow.slo_s for flow, new in found if new > 0 and new >= _MIN_SHARE * total]
            if slos:
                self._slo_s[lane] = min(slos)

    def waits(self, signals: Signals) -> tuple[LaneWait, ...]:
        """The lanes in which something waits, the tightest first."""
        waiting = sorted(
            (self._target_s(lane.name, signals), lane.name, lane.work_tokens)
            for lane in signals.lanes
            if lane.work_tokens > 0
        )
        ahead, found = 0.0, []
        for target_s, name, work in waiting:
            ahead += work
            found.append(LaneWait(name, ahead, target_s))
        return tuple(found)

    def _target_s(self, lane: str, signals: Signals) -> float:
        """Promoted requests have waited long: their target is that of the tightest lane."""
        settings = self.settings
        slo_s = self._slo_s.get(lane, min(self._slo_s.values(), default=1.0))
        own = [one.name for one in signals.lanes if one.name != PROMOTED]
        last = own[-1] if own else None
        target_s = settings.target_wait * slo_s
        return max(target_s, settings.long_wait_s) if lane == last and len(own) > 1 else target_s


def worst(waits: Iterable[LaneWait], work_per_s: float) -> tuple[float, LaneWait] | None:
    """The lane whose wait is the largest multiple of its target, with that multiple; None where nothing waits."""
    found = [
        ((wait.work_ahead / work_per_s if work_per_s > 0 else math.inf) / max(1e-6, wait.target_s), wait)
        for wait in waits
    ]
    return max(found, key=lambda one: one[0], default=None)


LONG_S, SHORT_S = 300.0, 60.0
_STEP_S = 5.0
_MIN_MISSED = 5


@dataclass(frozen=True, slots=True)
class _Class:
    """Counts of one class. `waited_s`: what requests waited in the lanes that it uses; `came`: how many came there."""

    met: int
    missed: int
    allowed: float
    slo_s: float
    waited_s: float
    came: int


@dataclass(frozen=True, slots=True)
class Burning:
    """The class whose SLOs are missed fastest. `rate`: the multiple of what its attainment allows, in the slower of the
    two windows; `wait_share`: how long a request of its lanes waited on average, as a share of its SLO."""

    traffic_class: str
    rate: float
    wait_share: float


_NONE = Burning("", 0.0, 0.0)


class Burn:
    """`worst`: of all classes. `seen_s`: the time observed since the last replica became ready."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, dict[str, _Class]]] = deque()
        self._ready = 0
        self._at_s: float | None = None
        self._waited_s: dict[str, float] = {}
        self.worst = _NONE
        self.seen_s = 0.0

    def look(self, signals: Signals) -> None:
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
    """The share of a class's requests that missed the SLO in between."""
    met, missed = (now.met - before.met, now.missed - before.missed) if before else (now.met, now.missed)
    return 0.0 if missed < _MIN_MISSED or met < 0 else missed / (met + missed)


WAITS = 0.1
JUDGED_S = 120.0
KEPT = 0.75
AGAIN_S = 3_600.0
GROWN = 1.25
_STALE_S = 1_800.0


@dataclass(frozen=True, slots=True)
class _Step:
    """A step for missed SLOs. `ready`: replicas before it; `work`: arriving work a second."""

    at_s: float
    ready: int
    burning: Burning
    work: float


class Relief:
    """Judges the steps that missed SLOs asked for."""

    def __init__(self) -> None:
        self._step: _Step | None = None
        self._in_vain: _Step | None = None
        self._until_s = -math.inf

    def concern(self, now: float, ready: int, burning: Burning, seen_s: float, work: float) -> Concern | None:
        """Why no replica would help the class that burns; None where one may."""
        if burning.wait_share < WAITS:
            return Concern.NOTHING_WAITS
        self._judge(now, ready, burning, seen_s, work)
        if self._in_vain is None or now >= self._until_s or work > GROWN * self._in_vain.work:
            return None
        return Concern.HELPED_NOTHING

    def open(self, now: float, ready: int, seen_s: float) -> bool:
        """Whether the last step can be judged by now, or there is none to judge."""
        return self._judgeable(now, ready) is None or seen_s >= JUDGED_S

    def stepped(self, now: float, ready: int, burning: Burning, work: float) -> None:
        if self._step is None or self._step.ready != ready or now - self._step.at_s >= _STALE_S:
            self._step = _Step(now, ready, burning, work)

    def _judge(self, now: float, ready: int, burning: Burning, seen_s: float, work: float) -> None:
        step = self._judgeable(now, ready)
        if step is None or seen_s < JUDGED_S:
            return
        self._step = None
        same = burning.traffic_class == step.burning.traffic_class and work / ready <= step.work / max(1, step.ready)
        if same and burning.rate >= KEPT * step.burning.rate:
            self._in_vain, self._until_s = step, now + AGAIN_S

    def _judgeable(self, now: float, ready: int) -> _Step | None:
        step = self._step
        return step if step is not None and ready > step.ready and now - step.at_s < _STALE_S else None
