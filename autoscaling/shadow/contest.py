"""The active policy and its shadow on the same stream: what both would have cost and carried, by a fluid model, and how
often their numbers flapped. Pure.
"""

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from autoscaling.policies.backlog.replicas import CapacityEstimate, StartUps
from autoscaling.policies.policy import ReplicaProfile
from autoscaling.signals.signals import Signals

WITHIN_S = 600.0


@dataclass(frozen=True, slots=True)
class CountChange:
    at_s: float
    before: int
    after: int


class FlapCounter:
    """Counts flaps as changes happen: the number of replicas changes and changes back within ten minutes, although the
    load changed by less than one replica's capacity."""

    def __init__(self) -> None:
        self.count = 0
        self._last: dict[bool, tuple[CountChange, float]] = {}

    def take(self, change: CountChange, load: float) -> None:
        """A change, and the load at that moment in replicas."""
        up = change.after > change.before
        opposite = self._last.get(not up)
        if opposite is not None and change.at_s - opposite[0].at_s <= WITHIN_S and abs(load - opposite[1]) < 1.0:
            self.count += 1
            self._last.clear()
        self._last[up] = (change, load)


def flaps(changes: Sequence[CountChange], load: Callable[[float], float]) -> int:
    """How many of a run's changes are flaps. `load`: at a time, in replicas."""
    counter = FlapCounter()
    for change in changes:
        counter.take(change, load(change.at_s))
    return counter.count


class FluidFleet:
    """A fluid model of what a number of replicas would have carried. It scores a policy that was not obeyed.

        capacity   C = c * r              c: work a second and replica, as the active side learned it; r: ready replicas
        backlog    B <- max(0, B + arrived - C * dt)
        wait       w = B / C              infinite if there is work and no replica
        short      dt, if w exceeds the tightest SLO of the arriving requests
        paid       n * dt                 n: requested replicas, including starting ones
        start      a requested replica is ready S seconds later; a removed one is gone at once, starting ones first

    It deliberately leaves out lanes and their order, lengths of single requests, KV blocks, batching, draining, and
    that a short fleet sheds load. So it compares two policies on the same stream and does not forecast a latency. The
    active policy goes through the same model, beside its real misses: if the two disagree, do not trust the comparison.
    """

    def __init__(self, ready: int, at_s: float) -> None:
        self.ready = ready
        self.short_s = 0.0
        self.paid_s = 0.0
        self.backlog = 0.0
        self._due_s: list[float] = []
        self._at_s = at_s

    @property
    def asked(self) -> int:
        """Ready and starting replicas."""
        return self.ready + len(self._due_s)

    def pass_time(self, at_s: float, arrived: float, per_replica_s: float, slo_s: float) -> None:
        """`arrived` work until `at_s`; `per_replica_s`: c above."""
        passed = max(0.0, at_s - self._at_s)
        self._at_s = at_s
        self.ready += sum(due_s <= at_s for due_s in self._due_s)
        self._due_s = [due_s for due_s in self._due_s if due_s > at_s]
        self.paid_s += self.asked * passed
        capacity = per_replica_s * self.ready
        self.backlog = max(0.0, self.backlog + arrived - capacity * passed)
        wait_s = 0.0 if not self.backlog else self.backlog / capacity if capacity else math.inf
        if wait_s > slo_s:
            self.short_s += passed

    def ask(self, number: int, start_up_s: float) -> None:
        for _ in range(number - self.asked):
            self._due_s.append(self._at_s + start_up_s)
        for _ in range(self.asked - number):
            if self._due_s:
                self._due_s.pop()
            else:
                self.ready -= 1


@dataclass(frozen=True, slots=True)
class PolicyTally:
    """One policy's `replica_hours`, its `short_s` by the fluid model, its changes, the flaps among them, and how often
    each reason decided."""

    policy: str
    number: int
    replica_hours: float
    short_s: float
    changes: int
    flaps: int
    reasons: dict[str, int]


class PolicyLedger:
    """Begins with `ready` replicas."""

    def __init__(self, policy: str, ready: int, at_s: float) -> None:
        self.policy = policy
        self.fleet = FluidFleet(ready, at_s)
        self.number = ready
        self._changes = 0
        self._flaps = FlapCounter()
        self._reasons: Counter[str] = Counter()

    def decided(self, at_s: float, number: int, reason: str, load: float, start_up_s: float) -> None:
        """The policy asks for `number`. `load`: in replicas."""
        self._reasons[reason] += 1
        if number != self.number:
            self._changes += 1
            self._flaps.take(CountChange(at_s, self.number, number), load)
            self.number = number
        self.fleet.ask(number, start_up_s)

    def tally(self) -> PolicyTally:
        fleet = self.fleet
        return PolicyTally(
            self.policy,
            self.number,
            fleet.paid_s / 3600,
            fleet.short_s,
            self._changes,
            self._flaps.count,
            dict(self._reasons),
        )


_LOAD_S = 60.0
"""The span over which the load is averaged that tells a flap from a response (seconds)."""


@dataclass(frozen=True, slots=True)
class ShadowStanding:
    """`unknown_s`: the part of `seconds` without a known capacity, in which nothing counts as short. `agreement`: the
    share of moments at which both asked for the same number. `met`, `missed`: requests under the active policy."""

    seconds: float
    unknown_s: float
    agreement: float
    met: int
    missed: int
    work_per_replica_s: float | None
    start_up_s: float
    active: PolicyTally
    shadow: PolicyTally


class ShadowComparison:
    """Begins at the first moment that it is shown."""

    def __init__(self, active: str, shadow: str, replica_profile: ReplicaProfile) -> None:
        self._names = (active, shadow)
        self._capacity = CapacityEstimate(replica_profile)
        self._starts = StartUps(replica_profile.start_up_s)
        self._sides: tuple[PolicyLedger, PolicyLedger] | None = None
        self._first_s = self._last_s = 0.0
        self._unknown_s = 0.0
        self._moments = self._agreed = 0
        self._counts: tuple[int, float, int, int] | None = None
        self._kept = self._missed = 0
        self._load = 0.0

    def look(self, signals: Signals) -> None:
        """A moment; `decided` follows."""
        self._capacity.look(signals)
        self._starts.look(signals)
        now = signals.at_s
        if self._sides is None:
            names = self._names
            self._sides = (PolicyLedger(names[0], signals.applied, now), PolicyLedger(names[1], signals.applied, now))
            self._first_s = self._last_s = now
        arrived = self._arrived(signals)
        passed = now - self._last_s
        self._last_s = now
        per_replica_s = self._capacity.per_s
        if per_replica_s is None:
            self._unknown_s += passed
        else:
            met = math.exp(-passed / _LOAD_S)
            rate = arrived / passed if passed > 0 else 0.0
            self._load = self._load * met + (1 - met) * rate / per_replica_s
        slo_s = min((flow.slo_s for flow in signals.flows if flow.arrived), default=math.inf)
        for side in self._sides:
            side.fleet.pass_time(now, arrived, per_replica_s or math.inf, slo_s)

    def decided(self, at_s: float, active: tuple[int, str], shadow: tuple[int, str]) -> None:
        """The two numbers of that moment, with their reasons."""
        assert self._sides is not None
        self._moments += 1
        self._agreed += active[0] == shadow[0]
        for side, (number, reason) in zip(self._sides, (active, shadow), strict=True):
            side.decided(at_s, number, reason, self._load, self._starts.expected_s)

    def standing(self) -> ShadowStanding | None:
        """The sums so far; None before the first moment."""
        if self._sides is None:
            return None
        active, shadow = (side.tally() for side in self._sides)
        return ShadowStanding(
            self._last_s - self._first_s,
            self._unknown_s,
            self._agreed / self._moments if self._moments else 1.0,
            self._kept,
            self._missed,
            self._capacity.per_s,
            self._starts.expected_s,
            active,
            shadow,
        )

    def _arrived(self, signals: Signals) -> float:
        """Work since the moment before; none if the owner's counts began anew."""
        met, missed = sum(flow.met for flow in signals.flows), sum(flow.missed for flow in signals.flows)
        before, self._counts = self._counts, (signals.epoch, signals.arrived_work, met, missed)
        if before is None or before[0] != signals.epoch or signals.arrived_work < before[1]:
            return 0.0
        self._kept += met - before[2]
        self._missed += missed - before[3]
        return signals.arrived_work - before[1]
