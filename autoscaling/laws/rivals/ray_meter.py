"""How Ray Serve's controller comes to know the requests in flight: late, and as a mean.

Handles note their requests every min(look_back_period_s / 5, metrics_interval_s), send the notes every metrics_interval_s (at once while no replica
runs), and the controller takes the mean over time of what it was sent last, the last note standing until now.

Follows ray 2.60.0, `python/ray/serve/_private/router.py` and `_private/autoscaling_state.py`. Left out: that several handles send at different
moments.
"""

from autoscaling.laws.rivals.ray_controller import running_replicas
from autoscaling.laws.rivals.window import Window
from autoscaling.signals.signals import Signals

LOOK_BACK_S = 30.0
METRICS_INTERVAL_S = 10.0
_NOTES_A_LOOK_BACK = 5
"""RAY_SERVE_AUTOSCALING_METRIC_RECORD_INTERVAL_FACTOR is 0.2."""


class RayMeter:
    """Of one deployment with one handle."""

    def __init__(self, look_back_s: float = LOOK_BACK_S, metrics_interval_s: float = METRICS_INTERVAL_S) -> None:
        self._send_interval_s = metrics_interval_s
        self._note_interval_s = min(look_back_s / _NOTES_A_LOOK_BACK, metrics_interval_s)
        self._notes = Window(look_back_s)
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
