"""How long a request stays in a replica, by Little's law: running / finished a second. Bursts shorter than that share
the engine's slots."""

from autoscaling.signals.signals import Signals

_HALF_S = 300.0
_FIRST_S = 10.0
_MIN_S, _MAX_S = 0.5, 3_600.0


class Residence:
    """`seconds`: decayed averages of both, with a half-life of five minutes."""

    def __init__(self) -> None:
        self._at_s: float | None = None
        self._finished = 0
        self._epoch = 0
        self._running_s = 0.0
        self._ended = 0.0
        self.seconds = _FIRST_S

    def look(self, signals: Signals) -> None:
        """Takes a moment into account."""
        if self._at_s is not None and self._epoch == signals.epoch and signals.snapshot.finished >= self._finished:
            passed = signals.at_s - self._at_s
            kept = 0.5 ** (passed / _HALF_S)
            self._running_s = self._running_s * kept + signals.running * passed
            self._ended = self._ended * kept + signals.snapshot.finished - self._finished
            if self._ended >= 5:
                self.seconds = min(_MAX_S, max(_MIN_S, self._running_s / self._ended))
        self._at_s, self._finished, self._epoch = signals.at_s, signals.snapshot.finished, signals.epoch
