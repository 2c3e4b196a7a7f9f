"""How much work one replica does in a second when it is full: calibrated where somebody measured, and corrected by what it does when it is full.

calibrated   rate_at(limits, costs, the prompts and answers of late) * work of such a request
seen         work finished a second and replica, in spans of SPAN_S in which requests waited all the time and the replicas were full
capacity     calibrated * EWMA(seen / calibrated), the correction within a factor of LARGEST; without a calibration, EWMA(seen)
unknown      before both: work finished a second / share of the sequences that are booked, an upper bound, since larger batches are slower
"""

import math

from autoscaling.costs.replica_rate import rate_at
from autoscaling.laws.law import Plant
from autoscaling.signals.signals import ReplicaState, Signals

SPAN_S = 15.0
_FULL = 0.85
_WEIGHT = 0.3
LARGEST = 3.0
_MIX_EVERY_S = 60.0
_LEAST_COUNTED = 20


class Capacity:
    """`per_s`: work a second and replica; None while nothing at all is known. `calibrated`: whether it rests on a calibration."""

    def __init__(self, plant: Plant) -> None:
        self._plant = plant
        self._correction = 0.0
        self._seen: float | None = None
        self._base: float | None = None
        self._mix_s = -math.inf
        self._mix = (0.0, 0.0, 0.0, 0.0, 0.0)
        self._span: tuple[float, float, int] | None = None
        self._loose: float | None = None
        self._began: tuple[float, float] | None = None

    @property
    def calibrated(self) -> bool:
        """Whether a calibration is behind it."""
        return self._base is not None

    @property
    def per_s(self) -> float | None:
        """Work a second and full replica."""
        if self._base is not None:
            return self._base * math.exp(self._correction)
        return self._seen if self._seen is not None else self._loose

    def look(self, signals: Signals) -> None:
        """Takes a moment into account."""
        if self._plant.cost is not None and signals.at_s - self._mix_s >= _MIX_EVERY_S:
            self._calibrate(signals)
        self._measure(signals)

    def _calibrate(self, signals: Signals) -> None:
        """By the lengths of late: prompts that arrived, answers that the engines counted. Work as it is booked, since demand is told in that."""
        prompt_tokens = sum(flow.prompt_tokens for flow in signals.flows)
        now = (signals.arrived, prompt_tokens, signals.counted, signals.output_tokens, signals.arrived_work)
        arrived, prompts, counted, output, work = (new - old for new, old in zip(now, self._mix, strict=True))
        if min(arrived, counted) < _LEAST_COUNTED:
            if min(arrived, counted) < 0:
                self._mix = now  # the counts began anew
            return
        assert self._plant.cost is not None
        prompt, answer = max(1.0, prompts / arrived), max(1.0, output / counted)
        self._base = rate_at(self._plant.limits, self._plant.cost, prompt, answer, None) * work / arrived
        self._mix, self._mix_s = now, signals.at_s

    def _measure(self, signals: Signals) -> None:
        ready = [replica for replica in signals.replicas if replica.state is ReplicaState.READY]
        if not ready or not signals.waiting or _booked_share(signals) < _FULL:
            self._span = None
            self._guess(signals, len(ready))
            return
        if self._span is None or self._span[2] != len(ready) or signals.finished_work < self._span[1]:
            self._span = (signals.at_s, signals.finished_work, len(ready))
            return
        since_s, work, count = self._span
        passed = signals.at_s - since_s
        if passed < SPAN_S or signals.finished_work <= work:
            return
        seen = (signals.finished_work - work) / passed / count
        self._span = (signals.at_s, signals.finished_work, count)
        if self._base is not None:
            told = math.log(seen / self._base)
            most = math.log(LARGEST)
            self._correction += _WEIGHT * (min(most, max(-most, told)) - self._correction)
        self._seen = seen if self._seen is None else self._seen * (seen / self._seen) ** _WEIGHT

    def _guess(self, signals: Signals, ready: int) -> None:
        """Without any calibration, and never full yet."""
        if self._base is not None or self._seen is not None or not ready or signals.counted < _LEAST_COUNTED:
            return
        if self._began is None or signals.finished_work < self._began[1]:
            self._began = (signals.at_s, signals.finished_work)
            return
        passed, share = signals.at_s - self._began[0], _booked_share(signals)
        if passed >= SPAN_S and share > 0.02:
            rate = (signals.finished_work - self._began[1]) / passed / ready / share
            self._loose = rate if self._loose is None else self._loose + 0.3 * (rate - self._loose)
            self._began = (signals.at_s, signals.finished_work)


def _booked_share(signals: Signals) -> float:
    """Of the ready replicas' sequences or KV blocks, whichever is fuller."""
    ready = [replica for replica in signals.replicas if replica.state is ReplicaState.READY]
    sequences, most_sequences = sum(r.sequences for r in ready), sum(r.max_sequences for r in ready)
    kv, most_kv = sum(r.kv_tokens for r in ready), sum(r.max_kv_tokens for r in ready)
    return max(sequences / most_sequences if most_sequences else 0.0, kv / most_kv if most_kv else 0.0)
