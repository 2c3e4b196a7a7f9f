"""What the replicas do: how much work a full one does in a second, how long a start takes, how full they are, and which
ones do not count.

Capacity: calibrated where a cost file exists, and corrected by what replicas do when they are full.

    calibrated   rate_at(limits, costs, recent prompts and answers) * the work that such a request is booked with
    seen         work finished a second and replica, over moments in which requests waited and the replicas were full,
                 once MIN_FINISHED requests have finished
    capacity     calibrated * EWMA(seen / calibrated), within a factor of LARGEST; without a calibration, EWMA(seen)
    unknown      before both: work finished / the booked share of the replicas, summed over the same time. An upper
                 bound, since larger batches are slower

Recent means the last few hundred requests: lengths have long tails, and the mean of fifty is wrong by a fifth.

Occupancy is averaged over the time that a request stays: a shorter burst shares the engine's slots and needs no
replica.
"""

import math
from collections import deque
from dataclasses import replace

from autoscaling.policies.policy import ReplicaProfile
from autoscaling.signals.signals import NextStart, Signals
from deployments.engine_model.replica_rate import rate_at
from deployments.scheduling.replica import ReplicaStatus

_FULL = 0.85
_WEIGHT = 0.3
LARGEST = 3.0
MIN_FINISHED = 100
_MIX_EVERY_S = 60.0
_MIX_REQUESTS = 500.0
_MIN_COUNTED = 20
_GUESS_REPLICA_S = 5.0
"""Seconds of a full replica in one guess."""


class CapacityEstimate:
    """See the module's docstring."""

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
        self._guess_from: tuple[float, float, float] | None = None
        self._guess_work, self._guess_replica_s = 0.0, 0.0
        self._guess: float | None = None

    @property
    def calibrated(self) -> bool:
        return bool(self._base)

    @property
    def per_s(self) -> float | None:
        """Work a second of a full replica; None while nothing is known."""
        if self._base:
            return self._base * math.exp(self._correction)
        return self._seen or self._guess or None

    def look(self, signals: Signals) -> None:
        if self._replica_profile.cost is not None and signals.at_s - self._mix_s >= _MIX_EVERY_S:
            self._calibrate(signals)
        ready = signals.ready_replicas
        if ready and signals.waiting and _booked_share(signals) >= _FULL:
            self._measure(signals, len(ready))
        else:
            self._full = None
            self._guess_from_share(signals, len(ready))

    def _calibrate(self, signals: Signals) -> None:
        """By the prompts that arrived and the answers that the engines counted, in the scheduler's work."""
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
        limits, ready = self._replica_profile.limits, signals.ready_replicas
        if ready:  # a cap for `itl_ms` leaves less
            capped = round(sum(one.max_sequences for one in ready) / len(ready))
            limits = replace(limits, sequences=max(1, min(limits.sequences, capped)))
        self._base = rate_at(limits, self._replica_profile.cost, prompts / arrived, output / counted) * work / arrived
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
        """For replicas without a calibration that were never full."""
        if self._base or self._seen is not None or not ready or signals.snapshot.counted < _MIN_COUNTED:
            return
        now, work, before = signals.at_s, signals.snapshot.finished_work, self._guess_from
        self._guess_from = (now, work, ready * _booked_share(signals))
        if before is None or work < before[1]:
            return
        self._guess_work += work - before[1]
        self._guess_replica_s += (now - before[0]) * before[2]
        if self._guess_replica_s >= _GUESS_REPLICA_S and self._guess_work:
            rate = self._guess_work / self._guess_replica_s
            self._guess = rate if self._guess is None else self._guess + _WEIGHT * (rate - self._guess)
            self._guess_work, self._guess_replica_s = 0.0, 0.0


def _booked_share(signals: Signals) -> float:
    """Of the ready replicas' sequences or KV blocks, the larger share."""
    ready = signals.ready_replicas
    sequences, max_sequences = sum(r.sequences for r in ready), sum(r.max_sequences for r in ready)
    kv, max_kv = sum(r.kv_tokens for r in ready), sum(r.max_kv_tokens for r in ready)
    return max(sequences / max_sequences if max_sequences else 0.0, kv / max_kv if max_kv else 0.0)


_KEPT = 20


class StartUps:
    """How long a replica takes from the request for it to its first work. `expected_s`: the phases that the next start
    goes through (`next_start` in `signals.py`). Where nothing is known of phases: the third quartile of the last
    starts, which are matched with the requests in their order, and `first_s` before there is one. A running start that
    takes longer counts at once, so that a slow image is noticed before its first replica is ready."""

    def __init__(self, first_s: float) -> None:
        self._first_s = first_s
        self._asked_s: deque[float] = deque()
        self._seen: deque[float] = deque(maxlen=_KEPT)
        self._applied: int | None = None
        self._ready = 0
        self._next: NextStart | None = None
        self._factor = 1.0
        self.expected_s = first_s

    def look(self, signals: Signals) -> None:
        now, ready = signals.at_s, signals.ready
        if self._applied is None:
            self._applied, self._ready = signals.applied, ready
            return
        more = signals.applied - self._applied
        for _ in range(min(max(0, more), 10_000)):
            self._asked_s.append(now)
        for _ in range(min(max(0, -more), len(self._asked_s))):
            self._asked_s.pop()  # the platform stops starting replicas first
        for _ in range(min(max(0, ready - self._ready), len(self._asked_s))):
            self._seen.append(now - self._asked_s.popleft())
        if not signals.starting:
            self._asked_s.clear()  # a replica that reports again was no start
        changed = more or ready != self._ready or signals.next_start != self._next
        self._next = signals.next_start
        self._applied, self._ready = signals.applied, ready
        if changed or self._asked_s:
            ordered = sorted(self._seen)
            known = ordered[(3 * len(ordered)) // 4] if ordered else self._first_s
            if self._next is not None:
                known = self._factor * self._next.seconds
            running = now - self._asked_s[0] if self._asked_s else 0.0
            self.expected_s = max(known, running)

    def assume(self, factor: float) -> None:
        """All starts, past and future, take `factor` times as long."""
        self._first_s *= factor
        self._factor *= factor
        self._seen = deque((factor * seconds for seconds in self._seen), maxlen=_KEPT)
        self.expected_s *= factor

    def due_in_s(self, now: float) -> tuple[float, ...]:
        """In how many seconds each starting replica is expected, the oldest start first."""
        return tuple(max(0.0, self.expected_s - (now - asked_s)) for asked_s in self._asked_s)


_HALF_S = 300.0
_FIRST_S = 10.0
_MIN_S, _MAX_S = 0.5, 3_600.0


class Residence:
    """How long a request stays in a replica, by Little's law: running / finished a second, both averaged with a
    half-life of five minutes."""

    def __init__(self) -> None:
        self._at_s: float | None = None
        self._finished = 0
        self._epoch = 0
        self._running_s = 0.0
        self._ended = 0.0
        self.seconds = _FIRST_S

    def look(self, signals: Signals) -> None:
        if self._at_s is not None and self._epoch == signals.epoch and signals.snapshot.finished >= self._finished:
            passed = signals.at_s - self._at_s
            kept = 0.5 ** (passed / _HALF_S)
            self._running_s = self._running_s * kept + signals.running * passed
            self._ended = self._ended * kept + signals.snapshot.finished - self._finished
            if self._ended >= 5:
                self.seconds = min(_MAX_S, max(_MIN_S, self._running_s / self._ended))
        self._at_s, self._finished, self._epoch = signals.at_s, signals.snapshot.finished, signals.epoch


_GONE = (ReplicaStatus.DRAINING, ReplicaStatus.UNRESPONSIVE)
"""What an unresponsive replica holds is unknown."""


class Occupied:
    """How many replicas the booked sequences or KV blocks fill: an average over that time."""

    def __init__(self) -> None:
        self._at_s = 0.0
        self._value: float | None = None

    def look(self, signals: Signals, over_s: float) -> float | None:
        """None before any replica has reported its limits."""
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


_AFTER_S = 10.0
"""A feed that breaks is back after a second or two; a lost node is not."""


class UnresponsiveReplicas:
    """Replicas that have been unresponsive for so long that the others must carry their load."""

    def __init__(self) -> None:
        self._since_s: dict[str, float] = {}

    def look(self, signals: Signals) -> int:
        """How many applied replicas to leave out of account."""
        names = [replica.replica_id for replica in signals.replicas if replica.status == ReplicaStatus.UNRESPONSIVE]
        self._since_s = {name: self._since_s.get(name, signals.at_s) for name in names}
        gone = sum(signals.at_s - since_s >= _AFTER_S for since_s in self._since_s.values())
        return min(gone, max(0, signals.applied - 1))
