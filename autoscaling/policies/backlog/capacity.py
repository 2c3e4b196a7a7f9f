"""How much work one replica does in a second when it is full: calibrated where somebody measured, and corrected by what
it does when it is full.

    calibrated   rate_at(limits, costs, the prompts and answers of late) * what such a request is booked with
    seen         work finished a second and replica, over moments in which requests waited and the replicas were full,
                 until LEAST_FINISHED have
    capacity     calibrated * EWMA(seen / calibrated), within a factor of LARGEST; without a calibration, EWMA(seen)
    unknown      before both: work finished a second / share of the sequences that are booked, an upper bound, since
                 larger batches are slower

"Of late" is the last few hundred requests: lengths have long tails, and the mean of fifty is wrong by a fifth.
"""

import math

from autoscaling.policies.policy import ReplicaProfile
from autoscaling.signals.signals import Signals
from deployments.engine_model.replica_rate import rate_at

_FULL = 0.85
_WEIGHT = 0.3
LARGEST = 3.0
MIN_FINISHED = 100
_MIX_EVERY_S = 60.0
_MIX_REQUESTS = 500.0
_MIN_COUNTED = 20
_GUESS_S = 15.0


class CapacityEstimate:
    """`per_s`: work a second and replica; None while nothing at all is known. `calibrated`: whether it rests on a
    calibration."""

    def __init__(self, replica_profile: ReplicaProfile) -> None:
        self._replica_profile = replica_profile
        self._correction = 0.0
        self._seen: float | None = None
        self._base: float | None = None
        self._mix_s = -math.inf
        self._epoch: int | None = None
        self._last = (0.0, 0.0, 0.0, 0.0, 0.0)
        self._mix = [0.0, 0.0, 0.0, 0.0, 0.0]
        self._full: tuple[float, float, int] | None = None
        self._full_work, self._full_finished, self._full_replica_s = 0.0, 0, 0.0
        self._guess_from: tuple[float, float] | None = None
        self._guess: float | None = None

    @property
    def calibrated(self) -> bool:
        """Whether a calibration is behind it."""
        return bool(self._base)

    @property
    def per_s(self) -> float | None:
        """Work a second and full replica."""
        if self._base:
            return self._base * math.exp(self._correction)
        return self._seen or self._guess or None

    def look(self, signals: Signals) -> None:
        """Takes a moment into account."""
        if self._replica_profile.cost is not None and signals.at_s - self._mix_s >= _MIX_EVERY_S:
            self._calibrate(signals)
        ready = signals.ready_replicas
        if ready and signals.waiting and _booked_share(signals) >= _FULL:
            self._measure(signals, len(ready))
        else:
            self._full = None
            self._guess_from_share(signals, len(ready))

    def _calibrate(self, signals: Signals) -> None:
        """By the lengths of late: prompts that arrived, answers that the engines counted. Work as it is booked, since
        demand is told in that."""
        prompt_tokens = float(sum(flow.prompt_tokens for flow in signals.flows))
        now = (
            float(signals.arrived),
            prompt_tokens,
            signals.arrived_work,
            float(signals.snapshot.counted),
            float(signals.snapshot.output_tokens),
        )
        new = [value - before for value, before in zip(now, self._last, strict=True)]
        if min(new) < 0 or self._epoch != signals.epoch:
            self._last, self._epoch = now, signals.epoch  # the counts began anew
            return
        if min(new[0], new[3]) < _MIN_COUNTED:
            return
        assert self._replica_profile.cost is not None
        kept = 0.5 ** (new[0] / _MIX_REQUESTS)
        self._mix = [kept * old + value for old, value in zip(self._mix, new, strict=True)]
        arrived, prompts, work, counted, output = self._mix
        self._base = (
            rate_at(self._replica_profile.limits, self._replica_profile.cost, prompts / arrived, output / counted)
            * work
            / arrived
        )
        self._last, self._mix_s = now, signals.at_s

    def _measure(self, signals: Signals, ready: int) -> None:
        before, self._full = self._full, (signals.at_s, signals.snapshot.finished_work, signals.snapshot.finished)
        if before is None or signals.snapshot.finished < before[2] or signals.snapshot.finished_work < before[1]:
            return
        self._full_work += signals.snapshot.finished_work - before[1]
        self._full_finished += signals.snapshot.finished - before[2]
        self._full_replica_s += (signals.at_s - before[0]) * ready
        if self._full_finished < MIN_FINISHED or not self._full_work or not self._full_replica_s:
            return
        seen = self._full_work / self._full_replica_s
        self._full_work, self._full_finished, self._full_replica_s = 0.0, 0, 0.0
        self._seen = seen if self._seen is None else self._seen * (seen / self._seen) ** _WEIGHT
        if self._base:
            maximum = math.log(LARGEST)
            reported = min(maximum, max(-maximum, math.log(seen / self._base)))
            self._correction += _WEIGHT * (reported - self._correction)

    def _guess_from_share(self, signals: Signals, ready: int) -> None:
        """Without any calibration, and never full yet."""
        if self._base or self._seen is not None or not ready or signals.snapshot.counted < _MIN_COUNTED:
            return
        if self._guess_from is None or signals.snapshot.finished_work < self._guess_from[1]:
            self._guess_from = (signals.at_s, signals.snapshot.finished_work)
            return
        passed, share = signals.at_s - self._guess_from[0], _booked_share(signals)
        if passed >= _GUESS_S and share > 0.02:
            rate = (signals.snapshot.finished_work - self._guess_from[1]) / passed / ready / share
            self._guess = rate if self._guess is None else self._guess + _WEIGHT * (rate - self._guess)
            self._guess_from = (signals.at_s, signals.snapshot.finished_work)


def _booked_share(signals: Signals) -> float:
    """Of the ready replicas' sequences or KV blocks, whichever is fuller."""
    ready = signals.ready_replicas
    sequences, max_sequences = sum(r.sequences for r in ready), sum(r.max_sequences for r in ready)
    kv, max_kv = sum(r.kv_tokens for r in ready), sum(r.max_kv_tokens for r in ready)
    return max(sequences / max_sequences if max_sequences else 0.0, kv / max_kv if max_kv else 0.0)
