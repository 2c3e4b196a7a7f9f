"""Ray Serve's default: as many replicas as the requests in flight need at a target each.

    wish = n * (requests / (target * n))        n replicas run, `requests` run or wait: the mean of the last
                                                look_back_period_s
    answer = factors and delays on the wish; from zero, one request is enough, and both are skipped

Follows ray 2.60.0 by calling its `replica_queue_length_autoscaling_policy` and the functions that wrap it
(`_apply_autoscaling_config` of `python/ray/serve/autoscaling_policy.py`), one by one, because that wrapper reads the
clock: here the delays get the time of the signals. How the mean comes about is rebuilt in `RayMeter`. Left out: its
bounds (ours are the same). Ray is imported when the first decision is asked for.
"""

from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any, ClassVar

from autoscaling.policies.policy import DesiredReplicas, PolicyEntry, PolicyReason
from autoscaling.policies.settings import Positive
from autoscaling.signals.signals import Signals
from benchmarks.policies.rivals.common import NotNegative, SampleWindow, answer
from deployments.scheduling.replica import ReplicaStatus

_MANY = 1_000_000
"""Replicas: the bounds are not Ray's here."""


@dataclass(frozen=True, slots=True)
class RayDefaultSettings:
    """`target_ongoing_requests`: of one replica, running and waiting. A wish to add must stand for `upscale_delay_s`,
    one to remove for `downscale_delay_s` (the last replica for `downscale_to_zero_delay_s`, None: as long); what is
    added or removed is multiplied by its factor."""

    upscale_delay_s: NotNegative = 30.0
    downscale_delay_s: NotNegative = 600.0
    downscale_to_zero_delay_s: NotNegative | None = None
    upscaling_factor: Positive = 1.0
    downscaling_factor: Positive = 1.0
    target_ongoing_requests: Positive = 2.0


class RayDefault:
    """Its memory is Ray's policy state: when and in which direction the number was first wished away."""

    name: ClassVar[str] = "ray_default"

    def __init__(self, settings: RayDefaultSettings) -> None:
        self.period_s = 1.0
        self._settings = settings
        self._meter = RayMeter()
        self._state: dict[str, Any] = {}

    def decide(self, signals: Signals) -> DesiredReplicas:
        from ray.serve.autoscaling_policy import replica_queue_length_autoscaling_policy

        requests = self._meter.read(signals)
        wish, _ = replica_queue_length_autoscaling_policy(self.context(signals, requests))
        woken = self.wake(signals, requests)
        number = self.settle(wish, signals) if woken is None else woken
        return answer(number, signals.applied, wish, PolicyReason.DEMAND, {"requests": requests, "wish": float(wish)})

    def context(self, signals: Signals, total_requests: float) -> Any:
        """Ray's `AutoscalingContext` of this moment: replicas that run are those that take requests or would if they
        reported."""
        from ray.serve.config import AutoscalingContext

        running = running_replicas(signals)
        return AutoscalingContext(
            deployment_id=None,
            deployment_name="",
            app_name=None,
            current_num_replicas=running,
            target_num_replicas=signals.applied,
            running_replicas=[],
            total_num_requests=total_requests,
            total_queued_requests=float(signals.waiting),
            aggregated_metrics=None,
            raw_metrics=None,
            capacity_adjusted_min_replicas=0,
            capacity_adjusted_max_replicas=_MANY,
            policy_state={},
            last_scale_up_time=None,
            last_scale_down_time=None,
            current_time=signals.at_s,
            config=_config(self._settings),
        )

    def wake(self, signals: Signals, total_requests: float) -> int | None:
        """What Ray sets at once where no replica runs and requests are there; None elsewhere."""
        from ray.serve import autoscaling_policy as ray

        number = ray._get_cold_start_scale_up_replicas(self.context(signals, total_requests))
        return None if number is None else int(number)

    def settle(self, desired: float, signals: Signals) -> int:
        """The number that Ray would set as the deployment's target."""
        from ray.serve import autoscaling_policy as ray

        running, config = running_replicas(signals), _config(self._settings)
        scaled = ray._apply_scaling_factors(desired, running, config)
        if running == 0 and scaled > 0:
            return int(scaled)
        number, self._state = ray._apply_delay_logic(max(0, scaled), signals.applied, config, self._state, signals.at_s)
        return max(0, int(number))


def running_replicas(signals: Signals) -> int:
    """Replicas that are up: Ray does not know that one is unresponsive."""
    return signals.ready + signals.count(ReplicaStatus.UNRESPONSIVE)


@lru_cache(maxsize=256)
def _config(settings: RayDefaultSettings) -> Any:
    from ray.serve.config import AutoscalingConfig

    return AutoscalingConfig(min_replicas=0, max_replicas=_MANY, **asdict(settings))


_LOOK_BACK_S, _SEND_EVERY_S = 30.0, 10.0
_NOTE_EVERY_S = 6.0
"""RAY_SERVE_AUTOSCALING_METRIC_RECORD_INTERVAL_FACTOR of the look-back is 0.2."""


class RayMeter:
    """How Ray Serve's controller comes to know the requests in flight of one deployment with one handle: late, as a
    mean.

    Handles note their requests every min(look_back_period_s / 5, metrics_interval_s), send the notes every
    metrics_interval_s (at once while no replica runs), and the controller takes the mean over time of what it was sent
    last, the last note standing until now.

    Follows ray 2.60.0, `python/ray/serve/_private/router.py` and `_private/autoscaling_state.py`. Left out: that
    several handles send at different moments.
    """

    def __init__(self) -> None:
        self._notes = SampleWindow(_LOOK_BACK_S)
        self._sent: tuple[tuple[float, float], ...] = ()
        self._noted_s: float | None = None
        self._sent_s: float | None = None

    def read(self, signals: Signals) -> float:
        """Requests that run or wait, as the controller has them now."""
        now = signals.at_s
        asleep = running_replicas(signals) == 0
        if asleep or self._noted_s is None or now - self._noted_s >= _NOTE_EVERY_S:
            self._notes.add(now, float(signals.running + signals.waiting))
            self._noted_s = now
        if asleep or self._sent_s is None or now - self._sent_s >= _SEND_EVERY_S:
            self._sent, self._sent_s = self._notes.samples(), now
        return mean_over_time(self._sent, now)


def mean_over_time(samples: tuple[tuple[float, float], ...], now: float) -> float:
    """The mean of a quantity that holds from each sample to the next, and from the last until now."""
    ends = [at for at, _ in samples[1:]] + [max(now, samples[-1][0] + 1e-3)]
    return sum(value * (end - at) for (at, value), end in zip(samples, ends, strict=True)) / (ends[-1] - samples[0][0])


ENTRY = PolicyEntry("ray_default", RayDefaultSettings, lambda settings, replica_profile: RayDefault(settings))
