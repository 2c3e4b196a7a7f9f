"""Ray Serve's default: as many replicas as the requests in flight need at a target each.

    wish = n * (requests / (target * n))        n replicas run, `requests` run or wait: the mean of the last
                                                look_back_period_s
    answer = factors and delays on the wish; from zero, one request is enough (`ray_controller.py`)

Follows ray 2.60.0 by calling its `replica_queue_length_autoscaling_policy` and the functions that wrap it
(`python/ray/serve/autoscaling_policy.py`). How the mean comes about is rebuilt in `RayMeter`. Left out: its bounds
(ours are the same).
"""

from dataclasses import dataclass
from typing import ClassVar

from autoscaling.policies.policy import DesiredReplicas, PolicyEntry, PolicyReason
from autoscaling.policies.settings import Positive
from autoscaling.signals.signals import Signals
from benchmarks.policies.rivals.common import answer
from benchmarks.policies.rivals.ray_controller import (
    LOOK_BACK_S,
    METRICS_INTERVAL_S,
    RayController,
    RayDelays,
    RayMeter,
)


@dataclass(frozen=True, slots=True)
class RayDefaultSettings(RayDelays):
    """`target_ongoing_requests`: of one replica, running and waiting."""

    target_ongoing_requests: Positive = 2.0
    look_back_period_s: float = LOOK_BACK_S
    metrics_interval_s: Positive = METRICS_INTERVAL_S

    def __post_init__(self) -> None:
        if self.metrics_interval_s >= self.look_back_period_s:
            raise ValueError(f"metrics_interval_s={self.metrics_interval_s!r}: allowed: < look_back_period_s")


class RayDefault:
    name: ClassVar[str] = "ray_default"

    def __init__(self, settings: RayDefaultSettings) -> None:
        self.period_s = 1.0
        self._settings = settings
        self._controller = RayController(settings, settings.target_ongoing_requests)
        self._meter = RayMeter(settings.look_back_period_s, settings.metrics_interval_s)

    def decide(self, signals: Signals) -> DesiredReplicas:
        from ray.serve.autoscaling_policy import replica_queue_length_autoscaling_policy

        requests = self._meter.read(signals)
        wish, _ = replica_queue_length_autoscaling_policy(self._controller.context(signals, requests))
        woken = self._controller.wake(signals, requests)
        number = self._controller.settle(wish, signals) if woken is None else woken
        return answer(number, signals.applied, wish, PolicyReason.DEMAND, {"requests": requests, "wish": float(wish)})


ENTRY = PolicyEntry(
    "ray_default",
    RayDefaultSettings,
    lambda settings, replica_profile: RayDefault(settings),
)
