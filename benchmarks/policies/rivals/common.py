"""What the ported policies share: samples of a time window, and the reason that fits a number."""

from collections import deque
from collections.abc import Mapping
from typing import Annotated

from pydantic import Field

from autoscaling.policies.policy import DesiredReplicas, PolicyReason

NotNegative = Annotated[float, Field(ge=0)]


class SampleWindow:
    """Samples not older than `span_s`. Time is that of the samples; it does not run backwards."""

    def __init__(self, span_s: float) -> None:
        self.span_s = span_s
        self._samples: deque[tuple[float, float]] = deque()

    def add(self, now: float, value: float) -> None:
        """Takes a sample, and forgets those that are older than the span."""
        self._samples.append((now, value))
        while self._samples[0][0] <= now - self.span_s and len(self._samples) > 1:
            self._samples.popleft()

    def samples(self) -> tuple[tuple[float, float], ...]:
        """Times and values, oldest first."""
        return tuple(self._samples)

    def since(self, after_s: float) -> list[float]:
        """The values of samples younger than that time."""
        return [value for at, value in self._samples if at > after_s]

    @property
    def mean(self) -> float:
        """Of all samples alike; 0 without any."""
        return sum(value for _, value in self._samples) / len(self._samples) if self._samples else 0.0


def answer(
    replicas: int, applied: int, before_delays: float, up: PolicyReason, terms: Mapping[str, float]
) -> DesiredReplicas:
    """The policy's answer. `before_delays`: the number of its equation alone; `up`: the reason for a step up."""
    if replicas > applied:
        policy_reason = up if applied else PolicyReason.WAKE
    elif replicas < applied:
        policy_reason = PolicyReason.CONSOLIDATE if replicas else PolicyReason.IDLE
    else:
        policy_reason = PolicyReason.COOLING if before_delays < applied else PolicyReason.STEADY
    return DesiredReplicas(replicas, policy_reason, terms)
