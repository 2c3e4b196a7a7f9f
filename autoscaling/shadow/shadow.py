"""The shadow of an autoscaler: another law that is asked the same at the same moments, and changes nothing. Pure.

It sees the number of replicas that the active law has made, not its own: its answers are to the world as it is. Its own numbers are then taken
through the fluid model (`contest.py`). Rate limits are not put on it: what it asks for does not happen, and would be asked for again at every moment.
"""

import math
from dataclasses import replace

from autoscaling.laws.law import Law, Plant
from autoscaling.scaler.autoscaler import Autoscaler
from autoscaling.scaler.bounds import Bounds
from autoscaling.scaler.controls import Control
from autoscaling.scaler.decision import Decision
from autoscaling.scaler.paced import PacedScaler
from autoscaling.shadow.contest import Contest, Standing
from autoscaling.signals.signals import Signals


class Shadow:
    """`law` beside the law named `active`."""

    def __init__(self, law: Law, bounds: Bounds, plant: Plant, active: str) -> None:
        self.scaler = PacedScaler(Autoscaler(law, _unhurried(bounds)))
        self._contest = Contest(active, law.name, plant)

    @property
    def law(self) -> Law:
        """The law itself."""
        return self.scaler.autoscaler.law

    def bound(self, bounds: Bounds) -> None:
        """Other bounds from now on."""
        self.scaler.autoscaler.bounds = _unhurried(bounds)

    def look(self, signals: Signals, controls: tuple[Control, ...], active: Decision) -> None:
        """The active law has decided by these facts. Nothing is compared while nobody sees anything."""
        if signals.age_s > self.scaler.autoscaler.bounds.stale_s:
            return
        decision = self.scaler.decide(signals, controls)
        self._contest.look(signals)
        self._contest.decided(signals.at_s, (active.requested, active.reason), (decision.requested, decision.reason))

    def standing(self) -> Standing | None:
        """How the two compare so far."""
        return self._contest.standing()


def _unhurried(bounds: Bounds) -> Bounds:
    return replace(bounds, up_per_min=math.inf, down_per_min=math.inf)
