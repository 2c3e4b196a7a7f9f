"""What Ray Serve's controller does around an autoscaling policy, with Ray's own functions: factors, then delays; the
start from zero skips both.

Follows `_apply_autoscaling_config` of ray 2.60.0, `python/ray/serve/autoscaling_policy.py`, function by function,
because that wrapper reads the clock: here the delays get the time of the signals. Ray is imported when the first
decision is asked for.
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from autoscaling.policies.settings import Positive
from autoscaling.signals.signals import Signals
from benchmarks.policies.rivals.common import NotNegative, SampleWindow
from deployments.scheduling.replica import ReplicaStatus

_MANY = 1_000_000
"""Replicas: the bounds are not Ray's here."""


@dataclass(frozen=True, slots=True)
class RayDelays:
    """A wish to add must stand for `upscale_delay_s`, one to remove for `downscale_delay_s` (the last replica for
    `downscale_to_zero_delay_s`, None: as long); what is added or removed is multiplied by its factor."""

    upscale_delay_s: NotNegative = 30.0
    downscale_delay_s: NotNegative = 600.0
    downscale_to_zero_delay_s: NotNegative | None = None
    upscaling_factor: Positive = 1.0
    downscaling_factor: Positive = 1.0


class RayController:
    """The controller's part for one deployment. Its memory is Ray's policy state: when and in which direction the
    number was first wished away."""

    def __init__(self, delays: RayDelays, target_ongoing_requests: float = 1.0) -> None:
        self._delays = delays
        self._target = target_ongoing_requests
        self._state: dict[str, Any] = {}

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
            config=self.config,
        )

    @property
    def config(self) -> Any:
        """Ray's `AutoscalingConfig` with these settings."""
        return _config(self._delays, self._target)

    def wake(self, signals: Signals, total_requests: float) -> int | None:
        """What Ray sets at once where no replica runs and requests are there; None elsewhere."""
        from ray.serve import autoscaling_policy as ray

        number = ray._get_cold_start_scale_up_replicas(self.context(signals, total_requests))
        return None if number is None else int(number)

    def settle(self, desired: float, signals: Signals) -> int:
        """The number that Ray would set as the deployment's target."""
        from ray.serve import autoscaling_policy as ray

        running = running_replicas(signals)
        scaled = ray._apply_scaling_factors(desired, running, self.config)
        if running == 0 and scaled > 0:
            return int(scaled)
        number, self._state = ray._apply_delay_logic(
            max(0, scaled), signals.applied, self.config, self._state, signals.at_s
        )
        return max(0, int(number))


def running_replicas(signals: Signals) -> int:
    """Replicas that are up: Ray does not know that one is unresponsive."""
    return signals.ready + signals.count(ReplicaStatus.UNRESPONSIVE)


@lru_cache(maxsize=256)
def _config(delays: RayDelays, target_ongoing_requests: float) -> Any:
    from ray.serve.config import AutoscalingConfig

    return AutoscalingConfig(
        min_replicas=0,
        max_replicas=_MANY,
        target_ongoing_requests=target_ongoing_requests,
        upscale_delay_s=delays.upscale_delay_s,
        downscale_delay_s=delays.downscale_delay_s,
        downscale_to_zero_delay_s=delays.downscale_to_zero_delay_s,
        upscaling_factor=delays.upscaling_factor,
        downscaling_factor=delays.downscaling_factor,
    )


LOOK_BACK_S = 30.0
METRICS_INTERVAL_S = 10.0
_NOTES_A_LOOK_BACK = 5
"""RAY_SERVE_AUTOSCALING_METRIC_RECORD_INTERVAL_FACTOR is 0.2."""


class RayMeter:
    """How Ray Serve's controller comes to know the requests in flight of one deployment with one handle: late, as a
    mean.

    Handles note their requests every min(look_back_period_s / 5, metrics_interval_s), send the notes every
    metrics_interval_s (at once while no replica runs), and the controller takes the mean over time of what it was sent
    last, the last note standing until now.

    Follows ray 2.60.0, `python/ray/serve/_private/router.py` and `_private/autoscaling_state.py`. Left out: that
    several handles send at different moments.
    """

    def __init__(self, look_back_s: float = LOOK_BACK_S, metrics_interval_s: float = METRICS_INTERVAL_S) -> None:
        self._send_interval_s = metrics_interval_s
        self._note_interval_s = min(look_back_s / _NOTES_A_LOOK_BACK, metrics_interval_s)
        self._notes = SampleWindow(look_back_s)
        self._sent: tuple[tuple[float, float], ...] = ()
        self._noted_s: float | None = None
        self._sent_s: float | None = None

    def read(self, signals: Signals) -> float:
        """Requests that run or wait, as the controller has them now."""
        now = signals.at_s
        asleep = running_replicas(signals) == 0
        if asleep or self._noted_s is None or now - self._noted_s >= self._note_interval_s:
            self._notes.add(now, float(signals.running + signals.waiting))
            self._noted_s = now
        if asleep or self._sent_s is None or now - self._sent_s >= self._send_interval_s:
            self._sent, self._sent_s = self._notes.samples(), now
        return mean_over_time(self._sent, now)


def mean_over_time(samples: tuple[tuple[float, float], ...], now: float) -> float:
    """The mean of a quantity that holds from each sample to the next, and from the last until now."""
    ends = [at for at, _ in samples[1:]] + [max(now, samples[-1][0] + 1e-3)]
    return sum(value * (end - at) for (at, value), end in zip(samples, ends, strict=True)) / (ends[-1] - samples[0][0])
