"""The policy of a model that does not scale: always the spec's count. Operators' holds and pins override it like any
other."""

from dataclasses import dataclass
from typing import Annotated, ClassVar

from pydantic import Field

from autoscaling.policies.policy import DesiredReplicas, PolicyEntry, PolicyReason
from autoscaling.policies.settings import Positive, Range
from autoscaling.signals.signals import Signals
from cluster.spec import Autoscaling


class FixedPolicy:
    name: ClassVar[str] = "fixed"

    def __init__(self, count: int, period_s: float = Autoscaling().period_s) -> None:
        self.count = count
        self.period_s = period_s

    def decide(self, signals: Signals) -> DesiredReplicas:
        return DesiredReplicas(self.count, PolicyReason.STEADY, {"count": float(self.count)})


@dataclass(frozen=True, slots=True)
class FixedSettings:
    """`replicas`: the spec's count. `period_s`: how often it is asked."""

    replicas: Annotated[int, Field(ge=0)] = 2
    period_s: Positive = Autoscaling().period_s


ENTRY = PolicyEntry(
    "fixed",
    FixedSettings,
    lambda settings, replica_profile: FixedPolicy(settings.replicas, settings.period_s),
    {"replicas": Range(1, 16, integer=True)},
)
