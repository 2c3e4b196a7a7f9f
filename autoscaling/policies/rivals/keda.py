"""KEDA on waiting requests: it wakes the first replica and stops the last, and leaves the rest to a
HorizontalPodAutoscaler that it makes.

    0 -> 1:  every 30 s, while waiting > activation_threshold
    1 -> 0:  after 300 s without that (scale_to_zero), from however many there are
    else:    the HorizontalPodAutoscaler on the sum: ceil(waiting / threshold), every 15 s, with its tolerance,
             stabilisation and rates

Follows kedacore/keda, commit 8b4f083ca8c8c2baf8477e322bd4d16ac4dfa09a: `pkg/scaling/executor/scale_scaledobjects.go`
and `scale_executor.go`, `apis/keda/v1alpha1/withtriggers_types.go` (polling 30 s, cooldown 300 s), a Prometheus trigger
of type AverageValue; and for what to trigger on, vllm-project/production-stack,
`docs/source/use_cases/autoscaling-keda.rst` (commit 183a136abb5f7d3a41e2ee9e96b2c33cd20aad30): num_requests_waiting
with threshold 5 and minReplicaCount 1, which is why `scale_to_zero` is off by default. With it, as in that document, a
keep-alive trigger is on too, active for a minute after any request came: KEDA would else stop replicas that are busy
while nothing waits.

Left out: fallbacks for a trigger that errs, paused objects, idleReplicaCount.
"""

import math
from dataclasses import dataclass
from typing import Annotated, ClassVar

from pydantic import Field

from autoscaling.policies.policy import DesiredReplicas, PolicyEntry, PolicyReason
from autoscaling.policies.rivals.common import answer
from autoscaling.policies.rivals.hpa import SYNC_S, Normaliser, by_external_metric, shipped
from autoscaling.policies.settings import NotNegative, Positive, Range
from autoscaling.signals.signals import Signals

_KEEP_ALIVE_S = 60.0


@dataclass(frozen=True, slots=True)
class KedaSettings:
    """`threshold` waiting requests a replica; more than `activation_threshold` in all wake the first. `polling_s` and
    `cooldown_s` are of waking and stopping only."""

    threshold: Positive = 5.0
    activation_threshold: NotNegative = 0.0
    polling_s: Positive = 30.0
    cooldown_s: NotNegative = 300.0
    scale_to_zero: bool = False
    tolerance: Annotated[float, Field(ge=0, lt=1)] = 0.1
    down_stabilisation_s: NotNegative = 300.0


class Keda:
    name: ClassVar[str] = "keda"

    def __init__(self, settings: KedaSettings) -> None:
        self.period_s = SYNC_S
        self.latency_span_s = 0.0
        self._settings = settings
        self._normaliser = Normaliser(shipped(settings.down_stabilisation_s))
        self._polled_s: float | None = None
        self._active_s: float | None = None
        self._seen: tuple[int, int] | None = None
        self._came_s = -math.inf

    def decide(self, signals: Signals) -> DesiredReplicas:
        """One sync of the HorizontalPodAutoscaler, and a poll of KEDA's own where one is due."""
        now, applied, waiting = signals.at_s, signals.applied, float(signals.waiting)
        terms = {"waiting": waiting}
        traffic = self._has_traffic(signals)
        polled = self._poll(now, applied, waiting, traffic)
        if polled is not None:
            return answer(polled, applied, polled, PolicyReason.WAKE, terms)
        if applied == 0:
            return answer(0, 0, 0, PolicyReason.WAKE, terms)
        wish = by_external_metric(applied, waiting, self._settings.threshold, self._settings.tolerance)
        number = self._normaliser.normalise(now, applied, wish, minimum=1)
        return answer(number, applied, wish, PolicyReason.BACKLOG, {**terms, "wish": float(wish)})

    def _poll(self, now: float, applied: int, waiting: float, traffic: bool) -> int | None:
        """KEDA's own decision, None: the HorizontalPodAutoscaler's."""
        if self._polled_s is not None and now - self._polled_s < self._settings.polling_s:
            return None
        self._polled_s = now
        active = waiting > self._settings.activation_threshold or (self._settings.scale_to_zero and traffic)
        if self._active_s is None or active:  # a deployment that KEDA finds running counts as just active
            self._active_s = now
        if applied == 0:
            return 1 if active or not self._settings.scale_to_zero else None
        if self._settings.scale_to_zero and not active and now - self._active_s > self._settings.cooldown_s:
            return 0
        return None

    def _has_traffic(self, signals: Signals) -> bool:
        """Whether a request came within the last minute, as far as this policy has looked."""
        seen = (signals.epoch, signals.arrived)
        if self._seen is not None and seen != self._seen and signals.arrived > 0:
            self._came_s = signals.at_s
        self._seen = seen
        return signals.at_s - self._came_s < _KEEP_ALIVE_S


ENTRY = PolicyEntry(
    "keda",
    KedaSettings,
    lambda settings, replica_profile: Keda(settings),
    "KEDA on waiting requests, with a HorizontalPodAutoscaler between one replica and many",
    {
        "threshold": Range(0.5, 200, log=True),
        "cooldown_s": Range(30, 1_800, log=True),
        "tolerance": Range(0.02, 0.5, log=True),
        "down_stabilisation_s": Range(30, 1_800, log=True),
    },
    principal=("threshold", "tolerance", "down_stabilisation_s"),
)
