"""An autoscaler that is called at every turn that decides, and asks its law as often as the law wants. Pure.

Between two asks the last number stands. An operator's word is followed at once, and so is another hand's change of the number: the law is asked
before its time. Books that are too old are told at once; the law is not asked then.
"""

import math
from dataclasses import replace

from autoscaling.scaler.autoscaler import Autoscaler
from autoscaling.scaler.controls import Control, in_force
from autoscaling.scaler.decision import Decision
from autoscaling.signals.signals import Signals

_EARLY = 0.25
"""A law is asked at the reading nearest to its time: this share of the readings' distance early."""


class PacedScaler:
    """`autoscaler` decides."""

    def __init__(self, autoscaler: Autoscaler) -> None:
        self.autoscaler = autoscaler
        self._due_s = -math.inf
        self._read_s = -math.inf
        self._controls: tuple[Control, ...] = ()
        self._last: Decision | None = None

    def decide(self, signals: Signals, controls: tuple[Control, ...] = ()) -> Decision:
        """Decides by the facts of this moment, or repeats what was decided last."""
        now, last = signals.at_s, self._last
        controls = in_force(controls, signals.unix_s)
        early_s = _EARLY * min(now - self._read_s, self.autoscaler.law.period_s)
        self._read_s = now
        if signals.age_s > self.autoscaler.bounds.stale_s:
            return self.autoscaler.decide(signals, controls)
        as_it_was = last is not None and controls == self._controls and signals.applied == last.requested
        if last is not None and as_it_was and now + early_s < self._due_s:
            return replace(last, at_s=now, applied=signals.applied, ready=signals.ready)
        self._controls = controls
        self._due_s = now + self.autoscaler.law.period_s
        self._last = self.autoscaler.decide(signals, controls)
        return self._last

    def hurry(self) -> None:
        """Asks at the next moment, whatever the time: the law or its bounds have changed."""
        self._due_s = -math.inf
