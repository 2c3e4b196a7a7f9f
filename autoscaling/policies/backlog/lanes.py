"""How long what waits would wait, lane by lane, against what the classes in it were promised."""

import math
from collections.abc import Iterable
from dataclasses import dataclass

from autoscaling.policies.backlog.settings import BacklogSettings
from autoscaling.signals.signals import Signals
from deployments.scheduling.lanes import PROMOTED
from deployments.scheduling.snapshot import FlowStats

_TELLING_SHARE = 0.01


@dataclass(frozen=True, slots=True)
class LaneWait:
    """`work_ahead`: of this lane and of those that are promised more. `target_s`: how long its requests may wait."""

    name: str
    work_ahead: float
    target_s: float


class LaneTargets:
    """Which promises each lane holds, from what arrived there of late."""

    def __init__(self, settings: BacklogSettings) -> None:
        self.settings = settings
        self._counts: dict[tuple[str, str], int] = {}
        self._slo_s: dict[str, float] = {}
        self._next_s = -math.inf

    def look(self, signals: Signals) -> None:
        """Takes a moment into account; a class counts where it is at least a hundredth of a lane's arrivals of a
        minute."""
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
            slos = [flow.slo_s for flow, new in found if new > 0 and new >= _TELLING_SHARE * total]
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
        """The promoted have waited long already: their target is that of the tightest lane."""
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
