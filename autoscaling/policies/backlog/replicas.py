"""What the replicas do: how much work a full one does in a second, how long a start takes, how long a request stays,
how full they are, and which ones do not count.

Capacity is learned from what replicas finish, also while they are not full:

    full(u)    u * (1 + SLOWER) / (1 + SLOWER * u): the part of a full replica's work that one does of which the share u
               of sequences or KV blocks is booked, because its steps are quicker. While requests wait, all are full
    seen       work finished / sum over the replicas of full(u) * seconds, with a half-life of HALF_S of busy time
    doubt      sqrt(2 / requests finished): its standard error, as a share
    given      rate_at(limits, costs, prompts, answers) * the work of such a request, by a cost file. It counts as much
               as GIVEN finished requests, so some hundred requests correct any file, in either direction
    per_s      (given and seen, by their requests) / (1 + doubt): the side that is safe for the SLO

After a break what was seen counts less, by half for each day: the doubt is larger.
"""

import math
from collections import deque
from dataclasses import replace

from autoscaling.policies.policy import ReplicaProfile
from autoscaling.signals.signals import NextStart, Signals, third_quartile
from deployments.engine_model.replica_rate import rate_at
from deployments.scheduling.replica import ReplicaStatus

SLOWER = 0.5
"""A full batch's steps take so much longer than those of an almost empty one."""
HALF_S = 3_600.0
GIVEN = 22.0
"""A file is off by a third (one standard deviation): `doubt` of so many requests."""
MIN_FINISHED = 30
_AGED_S = 86_400.0
_GIVEN_EVERY_S = 60.0


class CapacityEstimate:
    """See the module's docstring. `per_s`: work a second of a full replica, on the safe side; None while it is
    unknown. `doubt`: its standard error, as a share."""

    def __init__(self, replica_profile: ReplicaProfile) -> None:
        self._replica_profile = replica_profile
        self._given = 0.0
        self._given_s = -math.inf
        self._last: tuple[float, int, int, float, float] | None = None
        self._work = self._full_s = self._finished = 0.0

    @property
    def doubt(self) -> float:
        counted = self._finished + (GIVEN if self._given else 0.0)
        return math.sqrt(2.0 / counted) if counted else math.inf

    @property
    def expected_per_s(self) -> float | None:
        """Without the safe side; None while it is unknown."""
        given = GIVEN if self._given else 0.0
        if not self._full_s or self._finished < (0.0 if given else MIN_FINISHED):
            return self._given or None
        return (given * self._given + self._finished * self._work / self._full_s) / (given + self._finished)

    @property
    def per_s(self) -> float | None:
        expected = self.expected_per_s
        return None if expected is None else expected / (1.0 + self.doubt)

    def resume(self, old: "CapacityEstimate", idle_s: float) -> None:
        """Goes on from what another has learned of equal replicas until `idle_s` ago."""
        profile, other = self._replica_profile, old._replica_profile
        if (profile.limits, profile.decode_weight) == (other.limits, other.decode_weight):
            kept = 0.5 ** (idle_s / _AGED_S)
            self._work, self._full_s, self._finished = kept * old._work, kept * old._full_s, kept * old._finished

    def look(self, signals: Signals) -> None:
        now, snapshot = signals.at_s, signals.snapshot
        if self._replica_profile.cost is not None and now - self._given_s >= _GIVEN_EVERY_S and signals.arrived:
            self._given, self._given_s = self._by_costs(signals), now
        before, full = self._last, _full_replicas(signals)
        self._last = (now, signals.epoch, snapshot.finished, snapshot.finished_work, full)
        if before is None or before[1] != signals.epoch or not before[2] or snapshot.finished_work < before[3]:
            return  # what runs when the counts begin has been booked for nothing yet
        passed, full = now - before[0], before[4]
        kept = 0.5 ** (passed * min(1.0, full) / HALF_S)
        self._work = kept * self._work + snapshot.finished_work - before[3]
        self._full_s = kept * self._full_s + full * passed
        self._finished = kept * self._finished + snapshot.finished - before[2]

    def _by_costs(self, signals: Signals) -> float:
        profile, arrived, work = self._replica_profile, signals.arrived, signals.arrived_work
        prompts = float(sum(flow.prompt_tokens for flow in signals.flows))
        counted, output = signals.snapshot.counted, max(0.0, work - prompts) / profile.decode_weight / arrived
        if counted >= MIN_FINISHED:
            output = signals.snapshot.output_tokens / counted
        assert profile.cost is not None
        limits = profile.limits
        if ready := signals.ready_replicas:  # a cap for `itl_ms` leaves less
            capped = round(sum(one.max_sequences for one in ready) / len(ready))
            limits = replace(limits, sequences=max(1, min(limits.sequences, capped)))
        return rate_at(limits, profile.cost, prompts / arrived, output) * work / arrived


def _full_replicas(signals: Signals) -> float:
    """How many full replicas do as much as those that hold requests."""
    full = 0.0
    for one in signals.replicas:
        if one.max_sequences and one.status not in _GONE:
            share = max(
                one.sequences / one.max_sequences, one.kv_tokens / one.max_kv_tokens if one.max_kv_tokens else 0.0
            )
            full += full_share(min(1.0, share))
    return max(full, float(signals.ready)) if signals.waiting else full


def full_share(booked: float) -> float:
    return booked * (1.0 + SLOWER) / (1.0 + SLOWER * booked)


_KEPT = 20


class StartUps:
    """How long a replica takes from the request for it to its first work. `expected_s`: the phases that the next start
    goes through (`next_start` in `signals.py`). Where nothing is known of phases: the third quartile of the last
    starts, which are matched with the requests in their order, and `first_s` before there is one. A running start that
    takes longer counts at once, so that a slow image is noticed before its first replica is ready."""

    def __init__(self, first_s: float) -> None:
        self._first_s = first_s
        self._asked: deque[tuple[float, bool]] = deque()
        """Since when each replica starts, oldest first, and whether it was requested then: else another one was lost
        (or a new owner has yet to hear of it), and nothing is learned from it."""
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
        for _ in range(min(max(0, ready - self._ready), len(self._asked))):
            asked_s, requested = self._asked.popleft()
            if requested:
                self._seen.append(now - asked_s)
        while len(self._asked) > signals.starting:
            self._asked.pop()  # the platform stops starting replicas first; and one that reports again was no start
        for _ in range(min(signals.starting, 10_000) - len(self._asked)):
            self._asked.append((now, more > 0))
        changed = more or ready != self._ready or signals.next_start != self._next
        self._next = signals.next_start
        self._applied, self._ready = signals.applied, ready
        if changed or self._asked:
            known = third_quartile(self._seen) if self._seen else self._first_s
            if self._next is not None:
                known = self._factor * self._next.seconds
            running = now - self._asked[0][0] if self._asked else 0.0
            self.expected_s = max(known, running)

    def assume(self, factor: float) -> None:
        """All starts, past and future, take `factor` times as long."""
        self._first_s *= factor
        self._factor *= factor
        self._seen = deque((factor * seconds for seconds in self._seen), maxlen=_KEPT)
        self.expected_s *= factor

    def due_in_s(self, now: float) -> tuple[float, ...]:
        """In how many seconds each starting replica is expected, the oldest start first."""
        return tuple(max(0.0, self.expected_s - (now - asked_s)) for asked_s, _ in self._asked)


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
    """How many replicas the booked sequences (and what waits) or KV blocks fill: an average over that time."""

    def __init__(self) -> None:
        self._at_s = 0.0
        self._value: float | None = None

    def look(self, signals: Signals, over_s: float) -> float | None:
        """None before any replica has reported its limits."""
        live = [replica for replica in signals.replicas if replica.max_sequences and replica.status not in _GONE]
        if live:
            sequences = sum(r.sequences for r in live) + signals.waiting
            kv = sum(r.kv_tokens for r in live)
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
