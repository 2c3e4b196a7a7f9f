"""Small changes of a schedule, far enough from each other that each can be charged with the misses around it; and which of them to keep. Pure."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from planning.gauntlet.schedule import Needed, runs_of

AROUND = 9
"""Bins after a change in which its misses are looked for."""
_RAISES = 4
_ABOVE = 1.0 + 1e-9
"""A price just over that at which a change is worth nothing."""


@dataclass(frozen=True, slots=True)
class Change:
    """`step` replicas more in the bins from `begin` until before `end`."""

    begin: int
    end: int
    step: int

    @property
    def replica_bins(self) -> int:
        """What it costs."""
        return self.step * (self.end - self.begin)


def cuts(needed: Needed, least: int, width: int, rng: np.random.Generator) -> list[Change]:
    """A little off either end of each run above `least`, in any order; a short run goes whole."""
    found = []
    for run in runs_of(needed):
        if run.level <= least:
            continue
        if run.end - run.begin <= 2 * width:
            found.append(Change(run.begin, run.end, -1))
            continue
        if run.begin:
            found.append(Change(run.begin, run.begin + width, -1))
        found.append(Change(run.end - width, run.end, -1))
    return [found[index] for index in rng.permutation(len(found))]


def raises(needed: Needed, misses: NDArray[np.float64], most: int, width: int) -> list[Change]:
    """One more where most was missed."""
    within = np.convolve(misses, np.ones(width), mode="valid")
    worst = np.argsort(-within, kind="stable")[:_RAISES]
    return [Change(int(at), int(at) + width, 1) for at in worst if within[at] and needed[at : at + width].max() < most]


def apart(changes: Sequence[Change]) -> list[Change]:
    """As many as do not disturb each other, the first ones first."""
    taken = np.zeros(max((change.end for change in changes), default=0) + AROUND, dtype=np.bool_)
    kept = []
    for change in changes:
        if not taken[change.begin : change.end + AROUND].any():
            taken[change.begin : change.end + AROUND] = True
            kept.append(change)
    return kept


def changed(needed: Needed, changes: Sequence[Change]) -> Needed:
    """The schedule with these changes."""
    new = needed.copy()
    for change in changes:
        new[change.begin : change.end] += change.step
    return np.maximum(new, 0)


def affordable(costs: Sequence[int], charges: Sequence[int], allowed: int) -> list[int]:
    """Which changes to keep: as much saved as possible (a negative cost saves) while the charges together are at most `allowed`; the best first.

    By a price of a miss: what saves more than its charge at that price is kept; the least price at which the charges fit.
    """
    crossings = {_ABOVE * cost / -charge for cost, charge in zip(costs, charges, strict=True) if charge and cost / -charge > 0}
    for price in (0.0, *sorted(crossings), math.inf):
        worth = [_worth(cost, charge, price) for cost, charge in zip(costs, charges, strict=True)]
        chosen = [index for index, value in enumerate(worth) if value > 0]
        if sum(charges[index] for index in chosen) <= allowed:
            return sorted(chosen, key=lambda index: -worth[index])
    return []


def _worth(cost: int, charge: int, price: float) -> float:
    """What a change is worth, where a miss has that price."""
    if math.isinf(price):
        return 1.0 if charge < 0 else (-cost if charge == 0 else -1.0)
    return -cost - price * charge
