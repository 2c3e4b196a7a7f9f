"""The ladder of one model: how many of its steps are in force, in the order in which the spec's owner wrote them
(docs/pressure.md). It decides once a second.

    missed(c)   the share of a class's requests that missed their SLO, without those that a step removed, over about
                max(MISSED_S, SLOS * its SLO)
    late(c, s)  the share of its arrivals, over about s, that would miss it by the p50 of their wait estimate
    pressed(c)  late(c, LATE_S) >= LATE, and missed(c) >= max(BURN * (1 - attainment), MISSED)
                or late(c, SOON_S) >= SOON where its SLO is at most SOON_S
    load        work that arrives a second, with what steps remove, by ready replica, over about LOAD_S

    up          the next step, where a class is pressed that it may relieve: one that no step in force sheds, nor this
                one. At most one each CLIMB_S, and none twice within AGAIN_S
    down        the last step, HOLD_S after it came into force, at most one each DOWN_S, where no class is pressed and
                the load is RELIEF of what it was then: there is less traffic, or there are more replicas. Else once
                nothing was pressed for its probation: PROBE_S, and twice as long each time that it came back at once

The SLO's burn comes late, since a wait counts when it is over. So wait estimates stand for it where SLOs are short;
where they are long, a lane that is passed over for a while would look lost.
"""

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from deployments.ladder_stats import LadderMode, LadderOrder, LadderStats
from deployments.scheduling.reasons import Rung

TURN_S = 1.0
MISSED_S, SOON_S, LATE_S, LOAD_S = 60.0, 10.0, 2.0, 15.0
BURN, MISSED, SOON, LATE = 3.0, 0.15, 0.15, 0.4
SLOS = 5.0
MIN_JUDGED, MIN_CAME = 5.0, 0.5
"""Requests of a class in such a span; fewer say nothing."""
CLIMB_S, AGAIN_S = 1.0, 60.0
HOLD_S, DOWN_S, RELIEF = 20.0, 5.0, 0.7
PROBE_S, LONGEST_PROBE_S = 120.0, 960.0


@dataclass(frozen=True, slots=True)
class LadderStep:
    """One rung for one class. `max_tokens`: of a clamp."""

    rung: Rung
    traffic_class: str
    max_tokens: int = 0

    @property
    def name(self) -> str:
        return f"{self.rung}:{self.traffic_class}"


_AUTO = LadderOrder()


@dataclass(frozen=True, slots=True)
class ClassCounts:
    """Of one class since the start: SLOs met and missed, and the work that arrived; its SLO (seconds)."""

    met: int = 0
    missed: int = 0
    work: float = 0.0
    slo_s: float = 0.0


@dataclass(slots=True)
class _Share:
    """A part of requests; both are decayed sums."""

    part: float = 0.0
    all: float = 0.0

    def add(self, part: int, of: int, passed_s: float, span_s: float) -> None:
        kept = math.exp(-passed_s / span_s)
        self.part, self.all = kept * self.part + part, kept * self.all + of

    def reaches(self, share: float, least: float) -> bool:
        return self.all >= least and self.part >= share * self.all


@dataclass(slots=True)
class _Pressure:
    """Of one class. `late` of `came`, and `removed`, since the last turn."""

    allowed: float
    late: int = 0
    came: int = 0
    removed: int = 0
    counts: ClassCounts = field(default_factory=ClassCounts)
    missed_share: _Share = field(default_factory=_Share)
    soon_share: _Share = field(default_factory=_Share)
    late_share: _Share = field(default_factory=_Share)

    def turn(self, counts: ClassCounts, passed_s: float) -> None:
        missed = max(0, counts.missed - self.counts.missed - self.removed)
        judged = missed + counts.met - self.counts.met
        self.missed_share.add(missed, judged, passed_s, max(MISSED_S, SLOS * counts.slo_s))
        self.soon_share.add(self.late, self.came, passed_s, SOON_S)
        self.late_share.add(self.late, self.came, passed_s, LATE_S)
        self.counts, self.late, self.came, self.removed = counts, 0, 0, 0

    @property
    def pressed(self) -> bool:
        burns = self.missed_share.reaches(max(BURN * self.allowed, MISSED), MIN_JUDGED)
        soon = self.counts.slo_s <= SOON_S and self.soon_share.reaches(SOON, MIN_JUDGED)
        return (burns or soon) and self.late_share.reaches(LATE, MIN_CAME)


@dataclass(slots=True)
class _Firing:
    """Of one step: when it came into force and was released last, the load then, and its probation."""

    fired_s: float = -math.inf
    released_s: float = -math.inf
    load: float = 0.0
    probe_s: float = PROBE_S


class Ladder:
    """Of one model. `steps`: all, of which the first `at` are in force. `ordered`: by an operator."""

    def __init__(self) -> None:
        self.steps: tuple[LadderStep, ...] = ()
        self.at = 0
        self.due_s = -math.inf
        self.touched: Counter[str] = Counter()
        self.ordered = _AUTO
        self._pressures: dict[str, _Pressure] = {}
        self._firings: dict[str, _Firing] = {}
        self._turned_s = self._moved_s = self._pressed_s = -math.inf
        self._load = 0.0

    def configure(self, steps: tuple[LadderStep, ...], allowed: Mapping[str, float]) -> None:
        """`allowed`: the share of each class that may miss its SLO. Other steps than before begin anew."""
        if [one.name for one in steps] != [one.name for one in self.steps]:
            self.at, self._firings = 0, {one.name: _Firing() for one in steps}
        self.steps = steps
        for name in allowed.keys() - self._pressures.keys():
            self._pressures[name] = _Pressure(allowed[name])
        for name, share in allowed.items():
            self._pressures[name].allowed = share

    def order(self, order: LadderOrder, now: float) -> None:
        """An operator has ordered that."""
        self.ordered = order
        self._move(min(max(self.at, self._floor), self._ceiling), now)

    @property
    def stats(self) -> LadderStats:
        return LadderStats(tuple(one.name for one in self.steps), self.at, self.ordered, dict(self.touched))

    def acting(self, rung: Rung, traffic_class: str) -> LadderStep | None:
        """The step in force by which the rung touches that class."""
        found = (one for one in self.steps[: self.at] if (one.rung, one.traffic_class) == (rung, traffic_class))
        return next(found, None)

    def touch(self, step: LadderStep) -> None:
        """A request got less by that step, or was removed by it."""
        self.touched[step.name] += 1
        if step.rung is not Rung.CLAMP:
            self._pressures[step.traffic_class].removed += 1

    def came(self, traffic_class: str, late: bool) -> None:
        """A request came that no step removed. `late`: its SLO would be missed, by its wait estimate."""
        found = self._pressures.get(traffic_class)
        if found is not None:
            found.came += 1
            found.late += late

    def turn(self, counts: Mapping[str, ClassCounts], ready: int, now: float) -> None:
        """Decides. `counts` by class; `ready`: replicas."""
        passed_s, work = now - self._turned_s, 0.0
        self._turned_s, self.due_s = now, now + TURN_S
        for name, pressure in self._pressures.items():
            found = counts.get(name, pressure.counts)
            work += found.work - pressure.counts.work
            pressure.turn(found, passed_s)
        if passed_s < math.inf:
            self._load += (1.0 - math.exp(-passed_s / LOAD_S)) * (work / passed_s / max(1, ready) - self._load)
        pressed = {name for name, one in self._pressures.items() if one.pressed}
        pressed -= {one.traffic_class for one in self.steps[: self.at] if one.rung is Rung.SHED}
        if pressed:
            self._pressed_s = now
        if self.at < self._ceiling and self._is_due_up(self.steps[self.at], pressed, now):
            self._move(self.at + 1, now)
        elif self.at > self._floor and not pressed and self._is_due_down(self.steps[self.at - 1], now):
            self._move(self.at - 1, now)

    def next_wakeup(self) -> float | None:
        """When `turn` is due though nothing else happens; None: never."""
        return self.due_s if self.at else None

    def _is_due_up(self, step: LadderStep, pressed: set[str], now: float) -> bool:
        if step.rung is Rung.SHED:
            pressed = pressed - {step.traffic_class}
        apart = now - self._moved_s >= CLIMB_S and now - self._firings[step.name].fired_s >= AGAIN_S
        return bool(pressed) and apart

    def _is_due_down(self, step: LadderStep, now: float) -> bool:
        firing = self._firings[step.name]
        if now - firing.fired_s < HOLD_S or now - self._moved_s < DOWN_S:
            return False
        return self._load <= RELIEF * firing.load or now - max(self._pressed_s, self._moved_s) >= firing.probe_s

    def _move(self, at: int, now: float) -> None:
        for step in self.steps[self.at : at]:
            firing = self._firings[step.name]
            came_back = now - firing.released_s < AGAIN_S
            firing.probe_s = min(2 * firing.probe_s, LONGEST_PROBE_S) if came_back else PROBE_S
            firing.fired_s, firing.load = now, self._load
        for step in self.steps[at : self.at]:
            self._firings[step.name].released_s = now
        if at != self.at:
            self.at, self._moved_s = at, now
            self.due_s = min(self.due_s, now + TURN_S)

    @property
    def _floor(self) -> int:
        return self._named(0) if self.ordered.mode is LadderMode.AT else 0

    @property
    def _ceiling(self) -> int:
        return self._named(len(self.steps)) if self.ordered.mode is not LadderMode.AUTO else len(self.steps)

    def _named(self, otherwise: int) -> int:
        """How many steps the order names."""
        names = ["", *(one.name for one in self.steps)]
        return names.index(self.ordered.step) if self.ordered.step in names else otherwise
