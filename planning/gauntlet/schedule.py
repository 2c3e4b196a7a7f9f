"""Schedules of replicas that are known beforehand, the policy that follows one in the same simulated cell as every
policy, and the two ways in which the oracle changes a schedule. Pure.

A schedule is built from the replicas needed in each bin of `BIN_S`. Level by level, gaps shorter than a start are
filled, because ending a replica and starting another costs more than keeping it. Each replica is requested one start-up
time before it is needed.

Reshaping: each window is one replica lower, unchanged, or one higher. The cheapest choice, at a price of a miss:

    minimise  sum over windows of (replica-bins + price * misses)  +  start * sum over steps up of replicas

Dynamic programming over the windows (Viterbi) finds it: the cost of a window depends on the one before only by the step
between them. Bisection finds the lowest price at which the predicted misses are within the allowed ones.

Trimming: small changes, far enough apart that each can be charged with the misses around it, and the choice among them.
"""

import math
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from autoscaling.policies.policy import DesiredReplicas, PolicyReason
from autoscaling.signals.signals import Signals

BIN_S = 10.0

Needed = NDArray[np.int64]
"""Replicas in each bin, from second 0."""


@dataclass(frozen=True, slots=True)
class ScheduleLevel:
    """One level of the fleet, from bin `begin` until before `end`."""

    level: int
    begin: int
    end: int


@dataclass(frozen=True, slots=True)
class ReplicaSchedule:
    """From `at_s[i]` on the number is `replicas[i]`; the first is at second 0."""

    at_s: tuple[float, ...]
    replicas: tuple[int, ...]

    def __call__(self, at_s: float) -> int:
        return self.replicas[max(0, bisect_right(self.at_s, at_s) - 1)]


class SchedulePolicy:
    name: ClassVar[str] = "schedule"
    period_s = 1.0
    latency_span_s = 0.0

    def __init__(self, schedule: ReplicaSchedule) -> None:
        self._schedule = schedule

    def decide(self, signals: Signals) -> DesiredReplicas:
        return DesiredReplicas(self._schedule(signals.at_s), PolicyReason.SCHEDULE)


def runs_of(needed: Needed) -> Iterator[ScheduleLevel]:
    """The levels that make it up, in order."""
    for level in range(1, int(needed.max(initial=0)) + 1):
        there = np.concatenate(([False], needed >= level, [False]))
        edges = np.flatnonzero(there[1:] != there[:-1])
        for begin, end in zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True):
            yield ScheduleLevel(level, begin, end)


def filled(needed: Needed, start_up_s: float, replicas: int) -> Needed:
    """The same without gaps shorter than a start. `replicas`: at the beginning."""
    total = np.zeros_like(needed)
    runs: dict[int, list[ScheduleLevel]] = {}
    for run in runs_of(needed):
        runs.setdefault(run.level, []).append(run)
    for level, own in runs.items():
        end = 0 if level <= replicas else -math.inf
        for run in own:
            begin = int(end) if (run.begin - end) * BIN_S <= start_up_s else run.begin
            total[begin : run.end] += 1
            end = run.end
    return total


def scheduled(needed: Needed, start_up_s: float, replicas: int) -> ReplicaSchedule:
    """When to request how many, so that as many are ready as are needed, or as soon as a start allows."""
    changes = [(0.0, 0)]
    for run in runs_of(filled(needed, start_up_s, replicas)):
        there = run.level <= replicas and run.begin == 0
        changes += [(0.0 if there else max(0.0, run.begin * BIN_S - start_up_s), 1), (run.end * BIN_S, -1)]
    number: dict[float, int] = {}
    total = 0
    for at_s, step in sorted(changes):
        total += step
        number[at_s] = total
    return ReplicaSchedule(tuple(number), tuple(number.values()))


_STEPS = (-1, 0, 1)
_MIN_PRICE, _MAX_PRICE, _HALVINGS = 1e-4, 1e4, 40


@dataclass(frozen=True, slots=True, eq=False)
class ScheduleShape:
    """`needed`: by bin; `window`: of each bin; `lower`, `upper`: by window, the misses added by one replica less and by
    one more (negative). `start`: the cost of a start, in replica-bins."""

    needed: Needed
    window: NDArray[np.int64]
    lower: NDArray[np.float64]
    upper: NDArray[np.float64]
    start: float
    minimum: int
    maximum: int


def reshaped(shape: ScheduleShape, allowed: float) -> tuple[Needed, float]:
    """The cheapest levels that are predicted to add at most `allowed` misses, and the predicted number."""
    low, high = _MIN_PRICE, _MAX_PRICE
    best = _at_price(shape, high)
    for _ in range(_HALVINGS):
        price = (low * high) ** 0.5
        found = _at_price(shape, price)
        if found[1] <= allowed:
            high, best = price, found
        else:
            low = price
    return best


def _at_price(shape: ScheduleShape, price: float) -> tuple[Needed, float]:
    count = len(shape.lower)
    first, last = _ends(shape)
    bins = np.bincount(shape.window, minlength=count)
    misses = np.stack([shape.lower, np.zeros(count), shape.upper])
    cost = np.array(_STEPS)[:, None] * bins + price * misses
    cost[0, _lowest(shape) - 1 < shape.minimum] = np.inf
    cost[2, _highest(shape) + 1 > shape.maximum] = np.inf
    total, came = cost[:, 0].copy(), np.zeros((count, len(_STEPS)), dtype=np.int64)
    steps = np.array(_STEPS)
    for number in range(1, count):
        up = np.maximum(0, (first[number] + steps)[:, None] - (last[number - 1] + steps)[None, :])
        through = total[None, :] + shape.start * up
        came[number] = through.argmin(axis=1)
        total = through.min(axis=1) + cost[:, number]
    chosen = np.zeros(count, dtype=np.int64)
    chosen[-1] = int(total.argmin())
    for number in range(count - 1, 0, -1):
        chosen[number - 1] = came[number, chosen[number]]
    return shape.needed + steps[chosen][shape.window], float(misses[chosen, np.arange(count)].sum())


def _ends(shape: ScheduleShape) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The level of each window's first bin and of its last."""
    edges = np.flatnonzero(np.diff(shape.window)) + 1
    return shape.needed[np.concatenate(([0], edges))], shape.needed[
        np.concatenate((edges - 1, [len(shape.needed) - 1]))
    ]


def _lowest(shape: ScheduleShape) -> NDArray[np.int64]:
    return np.minimum.reduceat(shape.needed, np.flatnonzero(np.diff(shape.window, prepend=-1)))


def _highest(shape: ScheduleShape) -> NDArray[np.int64]:
    return np.maximum.reduceat(shape.needed, np.flatnonzero(np.diff(shape.window, prepend=-1)))


AROUND = 9
"""Bins after a change in which misses are charged to it."""
_RAISES = 4
_ABOVE = 1.0 + 1e-9
"""Just above the price at which a change is worth nothing."""


@dataclass(frozen=True, slots=True)
class ReplicaStep:
    """`step` more replicas from bin `begin` until before `end`."""

    begin: int
    end: int
    step: int

    @property
    def replica_bins(self) -> int:
        return self.step * (self.end - self.begin)


def cuts(needed: Needed, minimum: int, width: int, rng: np.random.Generator) -> list[ReplicaStep]:
    """Cuts at either end of each level above `minimum`, in random order; a short level goes completely."""
    found = []
    for run in runs_of(needed):
        if run.level <= minimum:
            continue
        if run.end - run.begin <= 2 * width:
            found.append(ReplicaStep(run.begin, run.end, -1))
            continue
        if run.begin:
            found.append(ReplicaStep(run.begin, run.begin + width, -1))
        found.append(ReplicaStep(run.end - width, run.end, -1))
    return [found[index] for index in rng.permutation(len(found))]


def raises(needed: Needed, misses: NDArray[np.float64], maximum: int, width: int) -> list[ReplicaStep]:
    within = np.convolve(misses, np.ones(width), mode="valid")
    worst = np.argsort(-within, kind="stable")[:_RAISES]
    return [
        ReplicaStep(int(at), int(at) + width, 1)
        for at in worst
        if within[at] and needed[at : at + width].max() < maximum
    ]


def apart(changes: Sequence[ReplicaStep]) -> list[ReplicaStep]:
    """As many as do not affect each other, in order of preference."""
    taken = np.zeros(max((change.end for change in changes), default=0) + AROUND, dtype=np.bool_)
    kept = []
    for change in changes:
        if not taken[change.begin : change.end + AROUND].any():
            taken[change.begin : change.end + AROUND] = True
            kept.append(change)
    return kept


def changed(needed: Needed, changes: Sequence[ReplicaStep]) -> Needed:
    new = needed.copy()
    for change in changes:
        new[change.begin : change.end] += change.step
    return np.maximum(new, 0)


def affordable(costs: Sequence[int], charges: Sequence[int], allowed: int) -> list[int]:
    """Which changes to keep, the best first: as much saved as possible (a negative cost saves) while their charges
    together are at most `allowed`.

    At a price of a miss, a change is kept if it saves more than its charge; the lowest price at which the charges fit
    is used.
    """
    crossings = {
        _ABOVE * cost / -charge for cost, charge in zip(costs, charges, strict=True) if charge and cost / -charge > 0
    }
    for price in (0.0, *sorted(crossings), math.inf):
        worth = [_worth(cost, charge, price) for cost, charge in zip(costs, charges, strict=True)]
        chosen = [index for index, value in enumerate(worth) if value > 0]
        if sum(charges[index] for index in chosen) <= allowed:
            return sorted(chosen, key=lambda index: -worth[index])
    return []


def _worth(cost: int, charge: int, price: float) -> float:
    """The value of a change at that price of a miss."""
    if math.isinf(price):
        return 1.0 if charge < 0 else (-cost if charge == 0 else -1.0)
    return -cost - price * charge
