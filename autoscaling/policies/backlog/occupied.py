"""How many replicas' worth of sequences or KV blocks are booked, averaged over the time that a request stays: a shorter
burst is no need."""

from autoscaling.signals.signals import Signals
from deployments.scheduling.replica import ReplicaStatus

_GONE = (ReplicaStatus.DRAINING, ReplicaStatus.UNRESPONSIVE)
"""What an unresponsive replica holds, nobody knows."""


class Occupied:
    """A decayed average."""

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
