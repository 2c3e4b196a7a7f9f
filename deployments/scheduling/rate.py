"""The service rate: how fast work is placed while some waits, as a decayed average over such time.

    rate = sum(w_i * work_i) / integral of w over backlogged time,  w(t) = 2 ** (-(now - t) / half_life)

Only time in which a request waits for room of a replica that is there counts: a cluster with little to do is not slow,
nor is one that starts. Until there was any such time the rate is what was finished a second while anything ran, which
is at most too small.
"""

import math

_LAMBDA = math.log(2) / 20.0


class Meter:
    """A decayed rate over the time in which it runs."""

    __slots__ = ("_at_s", "_time_s", "_work", "running")

    def __init__(self) -> None:
        self._work = 0.0
        self._time_s = 0.0
        self._at_s = 0.0
        self.running = False

    def run(self, running: bool, now: float) -> None:
        """Whether the time from now on counts."""
        if running is not self.running:
            self._advance(now)
            self.running = running
            self._at_s = now

    def add(self, work: float, now: float) -> None:
        """That much was done."""
        if self.running:
            self._advance(now)
            self._work += work

    @property
    def per_s(self) -> float | None:
        """Work a second; None until a tenth of a second counted."""
        return self._work / self._time_s if self._time_s > 0.1 and self._work > 0 else None

    def _advance(self, now: float) -> None:
        if self.running and now > self._at_s:
            decay = math.exp(-_LAMBDA * (now - self._at_s))
            self._work *= decay
            self._time_s = self._time_s * decay + (1.0 - decay) / _LAMBDA
            self._at_s = now


class ServiceRate:
    """`placed`: while backlogged; `finished`: while anything runs."""

    def __init__(self) -> None:
        self.placed = Meter()
        self.finished = Meter()

    def forget_idle(self) -> None:
        """What a little traffic took is no measure of what a crowd is served with: for the end of a waiting room."""
        self.finished = Meter()

    @property
    def per_s(self) -> float | None:
        """The best known rate, in units of `Job.cost` a second."""
        return self.placed.per_s or self.finished.per_s
