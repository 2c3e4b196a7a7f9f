"""llm-d's scaling by SLO: tail latency over its target is a saturation, and the fleet is scaled in proportion to it.

    s = mean over 45 s of min(max(P90 TTFT / S_ttft, P90 TPOT / S_tpot), 2), every 15 s; the P90 of the last minute, 0
    without traffic
    n are provisioned, r of them ready;  c = r / n while some start, else 1
    s > 0.55:   n + ceil(n * (s * c / 0.55 - 1))        replicas that start count as if they helped already; n at least
    s < 0.40:   n - floor(n * (1 - s / 0.40))           the measured s, without that credit
    else n answer = a HorizontalPodAutoscaler on that number: up max(100 %, 4) per 60 s after 30 s, down 1 per 120 s
    after 180 s

Follows llm-d/llm-d, `guides/workload-autoscaling/README.slo-aware.md` (commit d38c9f0c81e9cbaf60b06eb2819147f5acdf982a;
its manifests by their values in that guide), and Kubernetes for the HorizontalPodAutoscaler behind KEDA, whose 10 %
tolerance applies to the computed number too. The guide's SLOs are 3 s and 100 ms. It prefers latencies that a router's
trained model predicts, and takes the measured ones, as this port does, where there is no such model.

The guide runs between 3 and 8 replicas; bounds are ours to set, one is the least. Left out: the histograms' buckets,
whose interpolation rounds the percentiles. With much credit the formula by its letter falls below n while s is over its
threshold; the guide's text says that replicas go only while the measured s has room, so n is taken there.
"""

import math
from dataclasses import dataclass
from typing import ClassVar

from autoscaling.policies.policy import DesiredReplicas, PolicyEntry, PolicyReason
from autoscaling.policies.rivals.common import SampleWindow, answer
from autoscaling.policies.rivals.hpa import DUST, SYNC_S, Behaviour, Normaliser, ScalingRate, by_external_metric, ceil
from autoscaling.policies.settings import NotNegative, Positive, Range, require_order
from autoscaling.signals.signals import Signals
from deployments.cell.scaling_facts import LatencySignals

_QUANTILE_SPAN_S = 60.0
_TOLERANCE = 0.1


@dataclass(frozen=True, slots=True)
class LlmdSettings:
    """`ttft_slo_s` and `tpot_slo_s`: what the 90th percentiles are divided by. `up_threshold` and `down_threshold`
    bound where nothing happens; `clamp` bounds one sample of the saturation."""

    ttft_slo_s: Positive = 3.0
    tpot_slo_s: Positive = 0.1
    up_threshold: float = 0.55
    down_threshold: Positive = 0.40
    clamp: float = 2.0
    smoothing_s: Positive = 45.0
    up_stabilisation_s: NotNegative = 30.0
    down_stabilisation_s: NotNegative = 180.0
    down_period_s: Positive = 120.0

    def __post_init__(self) -> None:
        require_order(self, "down_threshold", "up_threshold", "clamp")


class Llmd:
    name: ClassVar[str] = "llmd"

    def __init__(self, settings: LlmdSettings) -> None:
        self.period_s = SYNC_S
        self.latency_span_s = _QUANTILE_SPAN_S
        self._settings = settings
        self._samples = SampleWindow(settings.smoothing_s)
        behaviour = Behaviour(
            settings.up_stabilisation_s,
            settings.down_stabilisation_s,
            ScalingRate(60.0, 4, 100.0),
            ScalingRate(settings.down_period_s, 1),
        )
        self._normaliser = Normaliser(behaviour)

    def decide(self, signals: Signals) -> DesiredReplicas:
        """One evaluation of the recording rules and one sync of the HorizontalPodAutoscaler."""
        applied = signals.applied
        self._samples.add(signals.at_s, self._saturation(signals.latencies))
        saturation = self._samples.mean
        terms = {"saturation": saturation}
        if applied == 0:
            return answer(1, 0, 1, PolicyReason.WAKE, terms)
        desired = desired_replicas(self._settings, applied, signals.ready, saturation)
        # The number is the metric, its target is 1 a replica.
        wish = by_external_metric(applied, float(desired), 1.0, _TOLERANCE)
        number = self._normaliser.normalise(signals.at_s, applied, wish, minimum=1)
        return answer(number, applied, wish, PolicyReason.LATENCY, {**terms, "desired": float(desired)})

    def _saturation(self, latencies: LatencySignals | None) -> float:
        """One sample, clamped: at the knee of a queue latencies run off, and would stay in the mean for long."""
        if latencies is None or latencies.requests == 0:
            return 0.0
        worst = max(latencies.ttft_p90_s / self._settings.ttft_slo_s, latencies.tpot_p90_s / self._settings.tpot_slo_s)
        return min(worst, self._settings.clamp)


def desired_replicas(settings: LlmdSettings, provisioned: int, ready: int, saturation: float) -> int:
    credit = ready / provisioned if 0 < ready < provisioned else 1.0
    if saturation > settings.up_threshold:
        return provisioned + max(0, ceil(provisioned * (saturation * credit / settings.up_threshold - 1)))
    if saturation < settings.down_threshold:
        return provisioned - math.floor(provisioned * (1 - saturation / settings.down_threshold) + DUST)
    return provisioned


ENTRY = PolicyEntry(
    "llmd",
    LlmdSettings,
    lambda settings, replica_profile: Llmd(settings),
    "llm-d's SLO policy: tail latency over its target, with credit for replicas that start",
    {
        "ttft_slo_s": Range(0.1, 10, log=True),
        "tpot_slo_s": Range(0.01, 0.5, log=True),
        "up_threshold": Range(0.41, 1.2),
        "down_threshold": Range(0.05, 0.40),
        "smoothing_s": Range(15, 180, log=True),
        "up_stabilisation_s": Range(0, 120),
        "down_stabilisation_s": Range(30, 900, log=True),
        "down_period_s": Range(15, 600, log=True),
    },
    principal=("ttft_slo_s", "tpot_slo_s", "up_threshold"),
    slo="ttft_slo_s",
)
