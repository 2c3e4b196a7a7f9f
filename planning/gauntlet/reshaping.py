"""A schedule's windows each one replica lower, as they are, or one higher: the cheapest choice of all, for a price of a miss. Pure.

    minimise  sum over windows of (replica-bins + price * misses)  +  start * sum over steps up of replicas

by dynamic programming over the windows (Viterbi): what a window costs depends on the one before only by the step between them. The least price at
which the misses foreseen are within what is allowed is found by halving.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from planning.gauntlet.schedule import Needed

_STEPS = (-1, 0, 1)
_LEAST_PRICE, _MOST_PRICE, _HALVINGS = 1e-4, 1e4, 40


@dataclass(frozen=True, slots=True, eq=False)
class Shape:
    """`needed` by bin, the `window` of each bin; by window, the misses that one replica less adds and that one more adds (less than none). `start`:
    what a start costs, in replica-bins. Levels stay between `least` and `most`."""

    needed: Needed
    window: NDArray[np.int64]
    lower: NDArray[np.float64]
    upper: NDArray[np.float64]
    start: float
    least: int
    most: int


def reshaped(shape: Shape, allowed: float) -> tuple[Needed, float]:
    """The cheapest levels that are foreseen to add at most `allowed` misses, and how many they are foreseen to add."""
    low, high = _LEAST_PRICE, _MOST_PRICE
    best = _at_price(shape, high)
    for _ in range(_HALVINGS):
        price = (low * high) ** 0.5
        found = _at_price(shape, price)
        if found[1] <= allowed:
            high, best = price, found
        else:
            low = price
    return best


def _at_price(shape: Shape, price: float) -> tuple[Needed, float]:
    count = len(shape.lower)
    first, last = _ends(shape)
    bins = np.bincount(shape.window, minlength=count)
    misses = np.stack([shape.lower, np.zeros(count), shape.upper])
    cost = np.array(_STEPS)[:, None] * bins + price * misses
    cost[0, _lowest(shape) - 1 < shape.least] = np.inf
    cost[2, _highest(shape) + 1 > shape.most] = np.inf
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


def _ends(shape: Shape) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The level of each window's first bin, and of its last."""
    edges = np.flatnonzero(np.diff(shape.window)) + 1
    return shape.needed[np.concatenate(([0], edges))], shape.needed[np.concatenate((edges - 1, [len(shape.needed) - 1]))]


def _lowest(shape: Shape) -> NDArray[np.int64]:
    return np.minimum.reduceat(shape.needed, np.flatnonzero(np.diff(shape.window, prepend=-1)))


def _highest(shape: Shape) -> NDArray[np.int64]:
    return np.maximum.reduceat(shape.needed, np.flatnonzero(np.diff(shape.window, prepend=-1)))
