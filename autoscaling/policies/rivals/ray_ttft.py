"""Ray Serve LLM's step by TTFT: one replica more while its 99th percentile is over a bound, one less while it is not
and replicas idle.

    p99 TTFT of the last minute > ttft_target_s:                  n + 1
    else, requests in flight / n < idle_threshold:                max(1, n - 1)
    else, or where nobody knows the TTFT:                         n
    answer = Ray's factors and delays on that (`ray_controller.py`): 30 s up, 600 s down

n are the replicas that run. Follows `TTFTAutoscalingPolicy` in `python/ray/serve/llm/autoscaling.py` of
ray-project/ray, commit 10b66af15e47c1b6fc465bcddfe0577dd66a1f05 and pull request 64725; ray 2.60.0 ships the Prometheus
reader it builds on, and not yet the policy. Requests in flight are those of Ray's default policy (`RayMeter`); the TTFT
is read every 5 s, as its Prometheus reader does.

Left out: the histogram's buckets, whose interpolation rounds the percentile; ours is exact. That the query there is not
restricted to the deployment (a finding of the pull request's review) does not show with one model.
"""

from dataclasses import dataclass
from typing import ClassVar

from autoscaling.policies.policy import DesiredReplicas, PolicyEntry, PolicyReason
from autoscaling.policies.rivals.common import answer
from autoscaling.policies.rivals.ray_controller import RayController, RayDelays, RayMeter, running_replicas
from autoscaling.policies.settings import NotNegative, Positive, Range
from autoscaling.signals.signals import Signals

_SPAN_S = 60.0


@dataclass(frozen=True, slots=True)
class RayTtftSettings(RayDelays):
    """`ttft_target_s`: of the 99th percentile. Fewer requests in flight than `idle_threshold` a replica mean that it
    idles."""

    ttft_target_s: Positive = 2.0
    idle_threshold: NotNegative = 1.0


class RayTtft:
    name: ClassVar[str] = "ray_ttft"

    def __init__(self, settings: RayTtftSettings) -> None:
        self.period_s = 5.0
        self.latency_span_s = _SPAN_S
        self._settings = settings
        self._controller = RayController(settings)
        self._meter = RayMeter()

    def decide(self, signals: Signals) -> DesiredReplicas:
        """One more, one less, or as many, after Ray's delays. From zero, the first request wakes one."""
        running, requests = running_replicas(signals), self._meter.read(signals)
        terms = {"requests": requests}
        woken = self._controller.wake(signals, requests)
        if woken is not None:
            return answer(woken, signals.applied, woken, PolicyReason.WAKE, terms)
        latencies = signals.latencies
        wish = running
        if latencies is not None and latencies.requests > 0:
            terms["ttft_p99_s"] = latencies.ttft_p99_s
            if latencies.ttft_p99_s > self._settings.ttft_target_s:
                wish = running + 1
            elif (requests / running if running else 0.0) < self._settings.idle_threshold:
                wish = max(1, running - 1)
        terms["wish"] = float(wish)
        return answer(self._controller.settle(wish, signals), signals.applied, wish, PolicyReason.LATENCY, terms)


ENTRY = PolicyEntry(
    "ray_ttft",
    RayTtftSettings,
    lambda settings, replica_profile: RayTtft(settings),
    "Ray Serve LLM's TTFT step: one more while the 99th percentile is over a bound, one less while replicas idle",
    {
        "ttft_target_s": Range(0.1, 10, log=True),
        "idle_threshold": Range(0.1, 64, log=True),
        "upscale_delay_s": Range(0, 120),
        "downscale_delay_s": Range(10, 1_800, log=True),
    },
    principal=("ttft_target_s", "upscale_delay_s", "downscale_delay_s"),
    slo="ttft_target_s",
)
