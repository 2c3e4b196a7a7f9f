"""How many replicas' worth of sequences or KV blocks are booked, averaged over the time that a request stays: a shorter
burst shares the engine's slots and is no need."""

from autoscaling.signals.signals import Signals
from deployments.scheduling.replica import ReplicaStatus

_HALF_S = 300.0
_FIRST_S = 10.0
_MIN_S, _MAX_S = 0.5, 3_600.0


class Residence:
    """How long a request stays in a replica, by Little's law: running / finished a second, both decayed averages with a
    half-life of five minutes."""

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


_GONE = (ReplicaStatus.DRAINING, ReplicaStatus.UNRESPONSIVE)
"""What an unresponsive replica holds, nobody knows."""


class Occupied:
    """How many replicas' worth of sequences or KV blocks are booked: a decayed average over that time."""

    def __init__(self) -> None:
        self._at_s = 0.0
        self._value: float | None = None

    def look(self, signals: Signals, over_s: float) -> float | None:
        """Takes a moment into account. None before any replica was seen that it could be measured by."""
        live = [replica for replica in signals.replicas if replica.max_sequences and replica.status not in _GONE]
        if live:
            sequences, kv = sum(r.sequences for r in live), sum(r.kv_tokens for r in live)
            each_sequences, each_kv = (
                sum(r.max_sequences for r in live) / len(live),
                sum(r.max_kv_tokens for r in live) / len(live),
            )
            now = max(sequences / each_sequences, kv / each_kv if each_kv else 0.0)
        else:
            now = 0.0
            if self._value is None:
                return None
        kept = 0.5 ** ((signals.at_s - self._at_s) / max(1.0, over_s)) if self._value is not None else 0.0
        self._at_s, self._value = signals.at_s, kept * (self._value or 0.0) + (1.0 - kept) * now
        return self._value
