"""Kubernetes' HorizontalPodAutoscaler on the requests that wait in each pod.

    wish = ceil(n * waiting / (n * target)), n pods that report;  as many as there are while the ratio is within 10 % of 1 (`hpa_metric.py`)
    answer = the wish after 300 s without a larger one on the way down, by max(100 %, 4 pods) every 15 s on the way up (`hpa_behaviour.py`)

Every 15 s. Follows Kubernetes' `pkg/controller/podautoscaler` (files and versions in the two modules) and the controller manager's defaults
(--horizontal-pod-autoscaler-sync-period 15s, -tolerance 0.1, -downscale-stabilization 5m). The target is the operator's to set and has no default
there; 5 is the threshold that vLLM's production stack uses for the same metric. The lanes' waiting requests stand for the sum of the pods' gauges.

A pod that starts runs and does not report, as an engine that loads its model does; so does a silent one. The controller leaves a scale of zero alone
(it takes it for switched off), and wants one at least (`minReplicas` 1). Left out: several metrics, and the initial readiness delay, which is for
CPU.
"""

from dataclasses import dataclass
from typing import ClassVar

from autoscaling.laws.entry import Entry
from autoscaling.laws.law import Motive, Plant, Wanted
from autoscaling.laws.rivals.answer import answer
from autoscaling.laws.rivals.hpa_behaviour import Normaliser, shipped
from autoscaling.laws.rivals.hpa_metric import by_pod_metric
from autoscaling.laws.settings import Range, require, require_not_negative, require_positive
from autoscaling.signals.signals import Signals

SYNC_S = 15.0


@dataclass(frozen=True, slots=True)
class HpaSettings:
    """`target_waiting` requests a pod; the ratio to it counts as 1 within `tolerance`."""

    target_waiting: float = 5.0
    tolerance: float = 0.1
    down_stabilisation_s: float = 300.0

    def __post_init__(self) -> None:
        require_positive(self, "target_waiting")
        require(self, "0 to below 1", 0 <= self.tolerance < 1, "tolerance")
        require_not_negative(self, "down_stabilisation_s")


class Hpa:
    """See the module's docstring."""

    name: ClassVar[str] = "hpa"

    def __init__(self, settings: HpaSettings) -> None:
        self.period_s = SYNC_S
        self.latency_span_s = 0.0
        self._settings = settings
        self._normaliser = Normaliser(shipped(settings.down_stabilisation_s))

    def decide(self, signals: Signals) -> Wanted:
        """One sync."""
        applied, ready, waiting = signals.applied, signals.ready, float(signals.waiting)
        if applied == 0:
            return answer(0, 0, 0, Motive.BACKLOG, {"waiting": waiting})
        missing = max(0, applied - ready)
        wish = by_pod_metric(applied, ready, missing, waiting, self._settings.target_waiting, self._settings.tolerance)
        number = self._normaliser.normalise(signals.at_s, applied, wish, least=1)
        return answer(number, applied, wish, Motive.BACKLOG, {"waiting": waiting, "wish": float(wish)})


def _make(settings: HpaSettings, plant: Plant) -> Hpa:
    return Hpa(settings)


ENTRY = Entry(
    "hpa",
    HpaSettings,
    _make,
    "Kubernetes' HorizontalPodAutoscaler on waiting requests a pod",
    {
        "target_waiting": Range(0.5, 200, log=True),
        "tolerance": Range(0.02, 0.5, log=True),
        "down_stabilisation_s": Range(30, 1_800, log=True),
    },
)
