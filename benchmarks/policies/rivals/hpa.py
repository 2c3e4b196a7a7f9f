"""Kubernetes' HorizontalPodAutoscaler on the requests that wait in each pod.

    wish = ceil(n * waiting / (n * target)), n pods that report;  as many as there are while the ratio is within 10 % of
    1 answer = the wish after 300 s without a larger one on the way down, by max(100 %, 4 pods) every 15 s on the way up

Between a wish and the scale that is written: stabilisation, then the rate, as `autoscaling/v2` has them by default.

    ceiling = the largest wish of the last down_stabilisation_s, this one with it
    stabilised = current, raised to the wish, lowered to the ceiling
    start = replicas 15 s ago: those of now less its own steps since
    up:   at most the larger of start + 4 and 2 * start

Every 15 s. Follows Kubernetes' `pkg/controller/podautoscaler`: `calcPlainMetricReplicas` of `replica_calculator.go`
(commit 00067268967ec95a40035bd666374a1caf48dd1a, the same since), `stabilizeRecommendationWithBehaviors` and
`convertDesiredReplicasWithBehaviorRate` of `horizontal.go`, in the later form where both directions' wishes and steps
count; and the controller manager's defaults (--horizontal-pod-autoscaler-sync-period 15s, -tolerance 0.1,
-downscale-stabilization 5m). The target is the operator's to set and has no default there; 5 is the threshold that
vLLM's production stack uses for the same metric. The lanes' waiting requests stand for the sum of the pods' gauges.

A pod that starts runs and does not report, as an engine that loads its model does; so does an unresponsive one. The
controller leaves a scale of zero alone (it takes it for switched off), and wants one at least (`minReplicas` 1). Left
out: several metrics, the initial readiness delay, which is for CPU, and the selectors Min and Disabled, which no policy
here uses.
"""

import math
from collections import deque
from dataclasses import dataclass
from typing import Annotated, ClassVar

from pydantic import Field

from autoscaling.policies.policy import DesiredReplicas, PolicyEntry, PolicyReason
from autoscaling.policies.settings import Positive
from autoscaling.signals.signals import Signals
from benchmarks.policies.rivals.common import NotNegative, SampleWindow, answer

SYNC_S = 15.0
_PODS = 4
_DUST = 1e-9
"""Kubernetes counts in thousandths; a float that is a hair above a whole number is that number."""


def ceil(value: float) -> int:
    """The next whole number, a hair forgiven."""
    return math.ceil(value - _DUST)


def by_pod_metric(current: int, ready: int, missing: int, total: float, target: float, tolerance: float) -> int:
    """For a metric of each pod: `total` of the `ready` pods, wanted to average `target`; `missing` ones do not report.

        ratio = total / (target * ready);   as many as there are where it is within the tolerance of 1, else ceil(ratio
                                            * ready)

    Pods that do not report count as idle on the way up and as on target on the way down, unless that would turn the
    direction around. Without a pod that reports nothing is changed.
    """
    if ready == 0:
        return current
    ratio = total / (target * ready)
    if missing == 0 or ratio == 1:
        return current if abs(1 - ratio) <= tolerance else ceil(ratio * ready)
    pods = ready + missing
    assumed = (total + (missing * target if ratio < 1 else 0.0)) / (target * pods)
    if abs(1 - assumed) <= tolerance or (ratio < 1 < assumed) or (assumed < 1 < ratio):
        return current
    desired = ceil(assumed * pods)
    if (assumed < 1 and desired > current) or (assumed > 1 and desired < current):
        return current
    return desired


@dataclass(frozen=True, slots=True)
class HpaSettings:
    """`target_waiting` requests a pod; the ratio to it counts as 1 within `tolerance`."""

    target_waiting: Positive = 5.0
    tolerance: Annotated[float, Field(ge=0, lt=1)] = 0.1
    down_stabilisation_s: NotNegative = 300.0


class Hpa:
    """One HorizontalPodAutoscaler: its wishes and its steps."""

    name: ClassVar[str] = "hpa"

    def __init__(self, settings: HpaSettings) -> None:
        self.period_s = SYNC_S
        self._settings = settings
        self._wishes = SampleWindow(max(settings.down_stabilisation_s, 1.0))
        self._steps: deque[tuple[float, int]] = deque()
        self._asked: tuple[float, int] | None = None
        self._started = False

    def decide(self, signals: Signals) -> DesiredReplicas:
        applied, ready, waiting = signals.applied, signals.ready, float(signals.waiting)
        if applied == 0:
            return answer(0, 0, 0, PolicyReason.BACKLOG, {"waiting": waiting})
        missing = max(0, applied - ready)
        wish = by_pod_metric(applied, ready, missing, waiting, self._settings.target_waiting, self._settings.tolerance)
        number = self.normalise(signals.at_s, applied, wish)
        return answer(number, applied, wish, PolicyReason.BACKLOG, {"waiting": waiting, "wish": float(wish)})

    def normalise(self, now: float, current: int, wish: int) -> int:
        """The number that is written to the scale, where `current` are there; one at least."""
        if not self._started:  # the controller begins with what it finds, so that a restart does not scale down
            self._wishes.add(now, current)
            self._started = True
        if self._asked is not None and current != self._asked[1]:
            # What came of it: our bounds, which lie behind, may have left less of the step.
            self._steps.append((self._asked[0], current - self._asked[1]))
        number = self.stabilise(now, current, wish)
        while self._steps and self._steps[0][0] <= now - SYNC_S:
            self._steps.popleft()
        if number > current:
            start = current - sum(step for _, step in self._steps)
            number = min(number, max(current, start + _PODS, 2 * start))
        number = max(1, number)
        self._asked = None if number == current else (now, current)
        return number

    def stabilise(self, now: float, current: int, wish: int) -> int:
        """The wish among those of late, and remembers it."""
        ceiling = max([wish, *(int(past) for past in self._wishes.since(now - self._settings.down_stabilisation_s))])
        self._wishes.add(now, wish)
        return min(max(current, wish), ceiling)


ENTRY = PolicyEntry("hpa", HpaSettings, lambda settings, replica_profile: Hpa(settings))
