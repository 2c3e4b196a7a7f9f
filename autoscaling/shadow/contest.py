"""The active law and its shadow on the same stream: what both would have cost and carried, by the fluid model (`fluid.py`). Pure."""

import math
from dataclasses import dataclass

from autoscaling.laws.backlog.capacity import Capacity
from autoscaling.laws.backlog.start_up import StartUps
from autoscaling.laws.law import Plant
from autoscaling.shadow.tally import Ledger, Tally
from autoscaling.signals.signals import Signals

_LOAD_S = 60.0
"""Over so many seconds the load is averaged that tells a flap from a response."""


@dataclass(frozen=True, slots=True)
class Standing:
    """Over `seconds`, of which no capacity was known for `unknown_s` (nothing counts as short there). `agreement`: the share of moments at which both
    asked for the same number. `kept` and `missed`: promises, as they really went under the active law."""

    seconds: float
    unknown_s: float
    agreement: float
    kept: int
    missed: int
    work_per_replica_s: float | None
    start_up_s: float
    active: Tally
    shadow: Tally


class Contest:
    """Begins at the first moment that it is shown."""

    def __init__(self, active: str, shadow: str, plant: Plant) -> None:
        self._names = (active, shadow)
        self._capacity = Capacity(plant)
        self._starts = StartUps(plant.start_up_s)
        self._sides: tuple[Ledger, Ledger] | None = None
        self._first_s = self._last_s = 0.0
        self._unknown_s = 0.0
        self._moments = self._agreed = 0
        self._counts: tuple[int, float, int, int] | None = None
        self._kept = self._missed = 0
        self._load = 0.0

    def look(self, signals: Signals) -> None:
        """Takes a moment into account; `decided` follows."""
        self._capacity.look(signals)
        self._starts.look(signals)
        now = signals.at_s
        if self._sides is None:
            names = self._names
            self._sides = (Ledger(names[0], signals.applied, now), Ledger(names[1], signals.applied, now))
            self._first_s = self._last_s = now
        arrived = self._arrived(signals)
        passed = now - self._last_s
        self._last_s = now
        per_replica_s = self._capacity.per_s
        if per_replica_s is None:
            self._unknown_s += passed
        else:
            kept = math.exp(-passed / _LOAD_S)
            rate = arrived / passed if passed > 0 else 0.0
            self._load = self._load * kept + (1 - kept) * rate / per_replica_s
        promise_s = min((flow.slo_s for flow in signals.flows if flow.arrived), default=math.inf)
        for side in self._sides:
            side.fleet.pass_time(now, arrived, per_replica_s or math.inf, promise_s)

    def decided(self, at_s: float, active: tuple[int, str], shadow: tuple[int, str]) -> None:
        """The two numbers of that moment, with their reasons."""
        assert self._sides is not None
        self._moments += 1
        self._agreed += active[0] == shadow[0]
        for side, (number, reason) in zip(self._sides, (active, shadow), strict=True):
            side.decided(at_s, number, reason, self._load, self._starts.expected_s)

    def standing(self) -> Standing | None:
        """The sums so far; None before the first moment."""
        if self._sides is None:
            return None
        active, shadow = (side.tally() for side in self._sides)
        return Standing(
            self._last_s - self._first_s,
            self._unknown_s,
            self._agreed / self._moments if self._moments else 1.0,
            self._kept,
            self._missed,
            self._capacity.per_s,
            self._starts.expected_s,
            active,
            shadow,
        )

    def _arrived(self, signals: Signals) -> float:
        """Work since the moment before; none where the owner's counts began anew."""
        kept, missed = sum(flow.kept for flow in signals.flows), sum(flow.missed for flow in signals.flows)
        before, self._counts = self._counts, (signals.epoch, signals.arrived_work, kept, missed)
        if before is None or before[0] != signals.epoch or signals.arrived_work < before[1]:
            return 0.0
        self._kept += kept - before[2]
        self._missed += missed - before[3]
        return signals.arrived_work - before[1]
