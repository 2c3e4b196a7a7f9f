"""Knative's pod autoscaler: as many replicas as the mean concurrency needs, over a long window, and over a short one in
a panic.

    stable, panic = mean of (running + waiting) over stable_window_s and over panic_window_percentage of it
    target = target_concurrency * target_utilisation;   n = max(1, ready)
    wish(v) = ceil(v / target), within [floor(n / max_scale_down_rate), ceil(n * max_scale_up_rate)]
    panic begins, and goes on for stable_window_s, where ceil(panic / target) / n >= panic_threshold
    answer = wish(stable);   in a panic the largest of wish(stable), wish(panic) and all answers of this panic: nothing
                             is taken away
    then the largest of the last scale_down_delay_s, and 0 only after scale_to_zero_grace_s of wishing for it

Every 2 s. Follows knative/serving, `pkg/autoscaler/scaling/autoscaler.go` (commit
00a4a55cd385aab53717b357aed7e1f9459b349e), with the defaults of `pkg/autoscaler/config/config.go`: 100 requests at 70 %,
60 s, 10 %, 200 %, rates of 1000 and 2, no delay, 30 s of grace. It begins in a panic where it finds several replicas,
as that file does after a restart, so that a short history takes nothing away.

Left out: the activator and its burst capacity (our lanes hold requests for replicas that are not there), the scrape of
a sample of the pods, requests per second as the metric, the activation scale (1 by default), the retention of the last
pod (0 by default).
"""

import math
from dataclasses import dataclass
from typing import Annotated, ClassVar

from pydantic import Field

from autoscaling.policies.policy import DesiredReplicas, PolicyEntry, PolicyReason
from autoscaling.policies.settings import Positive
from autoscaling.signals.signals import Signals
from benchmarks.policies.rivals.common import NotNegative, SampleWindow, answer

_TICK_S = 2.0


@dataclass(frozen=True, slots=True)
class KnativeSettings:
    """`target_concurrency` requests in flight a replica, of which `target_utilisation` are aimed at; `panic_threshold`
    is a ratio to what is ready."""

    target_concurrency: Positive = 100.0
    target_utilisation: Annotated[float, Field(gt=0, le=1)] = 0.7
    stable_window_s: Annotated[float, Field(ge=6, le=3600)] = 60.0
    panic_window_percentage: Annotated[float, Field(ge=1, le=100)] = 10.0
    panic_threshold: Annotated[float, Field(gt=1)] = 2.0
    max_scale_up_rate: Annotated[float, Field(gt=1)] = 1_000.0
    max_scale_down_rate: Annotated[float, Field(gt=1)] = 2.0
    scale_down_delay_s: NotNegative = 0.0
    scale_to_zero: bool = True
    scale_to_zero_grace_s: Positive = 30.0


class Knative:
    name: ClassVar[str] = "knative"

    def __init__(self, settings: KnativeSettings) -> None:
        self.period_s = _TICK_S
        self._settings = settings
        self._stable = SampleWindow(settings.stable_window_s)
        self._panic = SampleWindow(settings.stable_window_s * settings.panic_window_percentage / 100)
        self._delayed = SampleWindow(max(settings.scale_down_delay_s, _TICK_S))
        self._panic_s: float | None = None
        self._panic_max = 0
        self._zero_s: float | None = None
        self._started = False

    def decide(self, signals: Signals) -> DesiredReplicas:
        concurrency = float(signals.running + signals.waiting)
        for window in (self._stable, self._panic):
            window.add(signals.at_s, concurrency)
        stable, panic = self._stable.mean, self._panic.mean
        wish = self.scale(signals.at_s, signals.ready, stable, panic)
        number = self._without_haste_to_zero(signals.at_s, wish)
        terms = {"stable": stable, "panic": panic, "wish": float(wish), "panicking": float(self._panic_s is not None)}
        return answer(number, signals.applied, math.ceil(stable / self._target), PolicyReason.DEMAND, terms)

    @property
    def _target(self) -> float:
        return self._settings.target_concurrency * self._settings.target_utilisation

    def scale(self, now: float, ready: int, stable: float, panic: float) -> int:
        """The decider: the number for a mean concurrency over the stable and over the panic window."""
        settings, pods = self._settings, max(1, ready)
        if not self._started:
            self._started = True
            self._panic_s, self._panic_max = (now if ready > 1 else None), ready
        maximum, fewest = math.ceil(settings.max_scale_up_rate * pods), math.floor(pods / settings.max_scale_down_rate)
        wishes = [min(max(math.ceil(value / self._target), fewest), maximum) for value in (stable, panic)]
        if math.ceil(panic / self._target) / pods >= settings.panic_threshold:
            self._panic_s = now
        elif self._panic_s is not None and now - self._panic_s > settings.stable_window_s:
            self._panic_s, self._panic_max = None, 0
        number = wishes[0]
        if self._panic_s is not None:
            number = self._panic_max = max(*wishes, self._panic_max)
        if settings.scale_down_delay_s > 0:
            self._delayed.add(now, number)
            number = max(number, *(int(past) for past in self._delayed.since(now - settings.scale_down_delay_s)))
        return number

    def _without_haste_to_zero(self, now: float, wish: int) -> int:
        if wish > 0:
            self._zero_s = None
            return wish
        if self._zero_s is None:
            self._zero_s = now
        return 0 if self._settings.scale_to_zero and now - self._zero_s >= self._settings.scale_to_zero_grace_s else 1


ENTRY = PolicyEntry("knative", KnativeSettings, lambda settings, replica_profile: Knative(settings))
