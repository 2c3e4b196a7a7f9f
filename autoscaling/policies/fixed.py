"""The policy of a model that nothing scales: the spec's count, always. An operator's hold or pin goes over it as over
any other."""

from dataclasses import dataclass
from typing import ClassVar

from autoscaling.policies.policy import DesiredReplicas, PolicyEntry, PolicyReason
from autoscaling.policies.settings import Range, require_not_negative, require_positive
from autoscaling.signals.signals import Signals


class FixedPolicy:
    """Wants `count` replicas, asked every `period_s`."""

    name: ClassVar[str] = "fixed"
    latency_span_s = 0.0

    def __init__(self, count: int, period_s: float = 1.0) -> None:
        self.count = count
        self.period_s = period_s

    def decide(self, signals: Signals) -> DesiredReplicas:
        return DesiredReplicas(self.count, PolicyReason.STEADY, {"count": float(self.count)})


@dataclass(frozen=True, slots=True)
class FixedSettings:
    """So many `replicas`: the spec's count, or what the gauntlet compares every policy with. `period_s`: see
    `FixedPolicy`."""

    replicas: int = 2
    period_s: float = 1.0

    def __post_init__(self) -> None:
        require_not_negative(self, "replicas")
        require_positive(self, "period_s")


ENTRY = PolicyEntry(
    "fixed",
    FixedSettings,
    lambda settings, replica_profile: FixedPolicy(settings.replicas, settings.period_s),
    "a constant number",
    {"replicas": Range(1, 16, integer=True)},
)
