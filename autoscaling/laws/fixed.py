"""The law of a model that nothing scales: the spec's count, always. An operator's hold or pin goes over it as over any other."""

from typing import ClassVar

from autoscaling.laws.law import Motive, Wanted
from autoscaling.signals.signals import Signals


class FixedLaw:
    """Wants `count` replicas, asked every `period_s`."""

    name: ClassVar[str] = "fixed"
    latency_span_s = 0.0

    def __init__(self, count: int, period_s: float = 1.0) -> None:
        if count < 0:
            raise ValueError(f"count={count}: allowed: 0 or more")
        self.count = count
        self.period_s = period_s

    def decide(self, signals: Signals) -> Wanted:
        """See `Law`."""
        return Wanted(self.count, Motive.STEADY, {"count": float(self.count)})
