"""AIBrix' application-specific pod autoscaler: a gauge of each pod against a target, with a tolerance on either side
and caps on a step.

    use = mean over window_s of the mean over the ready replicas;   q = use / target;   n: applied replicas
    q > 1 + up_tolerance:      min(ceil(n * q), ceil(n * max_scale_up_rate))
    q < 1 - down_tolerance:    max(ceil(n * q), floor(n / max_scale_down_rate))
    else n;   of several gauges the largest number counts
    answer = on the way down the largest wish of the last down_cooldown_s, on the way up the least of the last
    up_cooldown_s

Every 10 s. Follows vllm-project/aibrix, commit e3e10f9e4aebe9aac5e7d992fb87d2648e01628b,
`pkg/controller/podautoscaler/`: `algorithm/apa.go`, `context/context.go`, `metrics/client.go`,
`stabilizeRecommendation` in `podautoscaler_controller.go`. Gauges and targets are those of its samples: KV usage at 0.5
(`samples/autoscaling/apa.yaml`), and with `waiting_target` also waiting requests (100 a pod in
`multimetrics-apa.yaml`). The tolerances are those samples' 0.1 and 0.2; their annotations have old names, which that
commit does not read, so that it would run with 0.1 and 0.1.

Its documentation calls the cooldowns stabilisation windows, as Kubernetes has them. The code of that commit picks the
other end: the *least* wish of the window on the way down, the largest on the way up, so that a fleet that has grown
falls back at once to what it was before. `cooldown` has both; the default is what is documented, which does the policy
more justice.

A scale of zero is left alone, and the last replica is kept (its scale_to_zero is off). Left out: the circuit breaker
and the predictor of later commits, schedules, external metrics.
"""

import math
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, ClassVar

from pydantic import Field

from autoscaling.policies.policy import DesiredReplicas, PolicyEntry, PolicyReason
from autoscaling.policies.rivals.common import SampleWindow, answer
from autoscaling.policies.rivals.hpa import ceil
from autoscaling.policies.settings import NotNegative, Positive, Range, Share
from autoscaling.signals.signals import Signals

_SYNC_S = 10.0


class ScaleCooldown(StrEnum):
    """Which wish of a cooldown's window counts."""

    DOCUMENTED = "documented"
    """The one that changes least."""
    SHIPPED = "shipped"
    """The one that changes most."""


@dataclass(frozen=True, slots=True)
class AibrixSettings:
    """`kv_target`: of the share of KV tokens that are booked; `waiting_target`: requests that wait a replica, None: not
    looked at."""

    kv_target: Positive = 0.5
    waiting_target: Positive | None = None
    up_tolerance: NotNegative = 0.1
    down_tolerance: Share = 0.2
    max_scale_up_rate: Annotated[float, Field(ge=1)] = 2.0
    max_scale_down_rate: Annotated[float, Field(ge=1)] = 2.0
    window_s: Positive = 180.0
    up_cooldown_s: NotNegative = 0.0
    down_cooldown_s: NotNegative = 300.0
    cooldown: ScaleCooldown = ScaleCooldown.DOCUMENTED


class Aibrix:
    name: ClassVar[str] = "aibrix"

    def __init__(self, settings: AibrixSettings) -> None:
        self.period_s = _SYNC_S
        self.latency_span_s = 0.0
        self._settings = settings
        self._kv = SampleWindow(settings.window_s)
        self._waiting = SampleWindow(settings.window_s)
        self._wishes = SampleWindow(max(settings.up_cooldown_s, settings.down_cooldown_s, _SYNC_S))

    def decide(self, signals: Signals) -> DesiredReplicas:
        settings, applied, ready = self._settings, signals.applied, signals.ready
        if applied == 0 or ready == 0:  # switched off, or no pod to read a gauge from
            return answer(applied, applied, applied, PolicyReason.OCCUPANCY, {})
        shares = [replica.kv_tokens / max(1, replica.max_kv_tokens) for replica in signals.ready_replicas]
        self._kv.add(signals.at_s, sum(shares) / ready)
        self._waiting.add(signals.at_s, signals.waiting / ready)
        terms = {"kv_usage": self._kv.mean, "waiting": self._waiting.mean}
        wish = target_replicas(settings, applied, self._kv.mean, settings.kv_target)
        if settings.waiting_target is not None:
            wish = max(wish, target_replicas(settings, applied, self._waiting.mean, settings.waiting_target))
        number = max(1, self._cooled(signals.at_s, applied, wish))
        return answer(number, applied, wish, PolicyReason.OCCUPANCY, {**terms, "wish": float(wish)})

    def _cooled(self, now: float, applied: int, wish: int) -> int:
        self._wishes.add(now, wish)
        if wish == applied:
            return applied
        up, settings = wish > applied, self._settings
        past = self._wishes.since(now - (settings.up_cooldown_s if up else settings.down_cooldown_s))
        if settings.cooldown is ScaleCooldown.SHIPPED:
            return int((max if up else min)(past, default=wish))
        return int(max(applied, min(past, default=wish)) if up else min(applied, max(past, default=wish)))


def target_replicas(settings: AibrixSettings, current: int, use: float, target: float) -> int:
    """The number for `use` of a gauge a pod, where `target` is wanted."""
    ratio = use / target
    if ratio > 1 + settings.up_tolerance:
        return min(ceil(current * ratio), math.ceil(current * settings.max_scale_up_rate))
    if ratio < 1 - settings.down_tolerance:
        return max(ceil(current * ratio), math.floor(current / settings.max_scale_down_rate))
    return current


ENTRY = PolicyEntry(
    "aibrix",
    AibrixSettings,
    lambda settings, replica_profile: Aibrix(settings),
    "AIBrix' APA: KV usage against a target, with tolerances and capped steps",
    {
        "kv_target": Range(0.1, 0.95),
        "up_tolerance": Range(0.02, 0.5, log=True),
        "down_tolerance": Range(0.02, 0.8, log=True),
        "max_scale_up_rate": Range(1.2, 8, log=True),
        "max_scale_down_rate": Range(1.1, 4, log=True),
        "window_s": Range(10, 600, log=True),
        "down_cooldown_s": Range(10, 1_800, log=True),
    },
    principal=("kv_target", "up_tolerance", "max_scale_down_rate"),
)
