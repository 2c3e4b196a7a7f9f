"""The load over time, in replicas' worth: 1.0 keeps one full replica busy. Pure."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from planning.workload.arrivals import FloatArray

STEP_S = 5.0


@dataclass(frozen=True, slots=True, eq=False)
class Load:
    """The mean load in each of even steps of `STEP_S` from second 0; beyond the ends it is what it was there."""

    replicas: FloatArray

    def __call__(self, at_s: float) -> float:
        """The load at a time."""
        return float(self.replicas[min(len(self.replicas) - 1, max(0, int(at_s // STEP_S)))])

    @property
    def mean(self) -> float:
        """Over the whole time."""
        return float(self.replicas.mean())

    def plus(self, other: "Load") -> "Load":
        """Both together."""
        return Load(self.replicas + other.replicas)

    def levelled(self) -> "Load":
        """Its mean, at all times: what replicas could follow of a load that changes faster than they start."""
        return Load(np.full_like(self.replicas, self.mean))


def load_of(expected: Callable[[FloatArray], FloatArray], per_replica: float, until_s: float) -> Load:
    """`expected`: how many requests come until a second, on average; `per_replica`: how many a second a full replica serves."""
    edges = np.arange(0.0, until_s + STEP_S, STEP_S)
    return Load(np.diff(expected(np.minimum(edges, until_s))) / STEP_S / per_replica)


def smoothed(arrived_s: FloatArray, per_replica: float, until_s: float, sigma_s: float) -> Load:
    """The load of recorded arrivals, whose rate nobody knows: a Gaussian kernel's, which does not lose what lies near the ends."""
    count = int(np.ceil(until_s / STEP_S))
    per_step = np.bincount(np.minimum((arrived_s // STEP_S).astype(np.int64), count - 1), minlength=count).astype(np.float64)
    reach = int(3 * sigma_s / STEP_S)
    kernel = np.exp(-0.5 * (np.arange(-reach, reach + 1) * STEP_S / sigma_s) ** 2)
    weight = np.convolve(np.ones(count), kernel, mode="full")[reach : reach + count]
    return Load(np.convolve(per_step, kernel, mode="full")[reach : reach + count] / weight / STEP_S / per_replica)
