"""Arrivals at a rate that changes, in bursts or evenly: a renewal process of unit rate, read on the rate's own clock. Pure.

If S1 < S2 < ... are the points of a renewal process with mean gap 1, the points Lambda^-1(S1) < Lambda^-1(S2) < ..., with Lambda(t) the expected
number of requests until t, come at the rate Lambda'(t), and keep the gaps' burstiness (I. Gerhardt, B. L. Nelson: Transforming Renewal Processes for
Simulation of Nonstationary Arrival Processes, INFORMS Journal on Computing 21(4), 2009). The first gap is of the equilibrium distribution, as if the
process had been running for ever: a length-biased gap times a uniform number. Then the number of requests is Lambda on average, exactly.
"""

import math
from typing import Literal

import numpy as np

from planning.workload.arrivals import FloatArray
from planning.workload.rate import Rate

GapKind = Literal["gamma", "weibull"]


def gaps(kind: GapKind, shape: float, count: int, rng: np.random.Generator) -> FloatArray:
    """Independent gaps of mean 1. Shape 1 is Poisson for both kinds; below 1 requests come in bursts, above 1 evenly."""
    if kind == "gamma":
        return rng.gamma(shape, 1 / shape, size=count)
    return rng.weibull(shape, size=count) / math.gamma(1 + 1 / shape)


def first_gap(kind: GapKind, shape: float, rng: np.random.Generator) -> float:
    """The time to the first point of a process that has been running for ever."""
    if kind == "gamma":  # x f(x) of a Gamma(k) is a Gamma(k + 1)
        biased = rng.gamma(shape + 1, 1 / shape)
    else:  # and of a Weibull(k) it is the power 1/k of a Gamma(1 + 1/k)
        biased = rng.gamma(1 + 1 / shape) ** (1 / shape) / math.gamma(1 + 1 / shape)
    return float(biased * rng.random())


def unit_points(kind: GapKind, shape: float, until: float, rng: np.random.Generator) -> FloatArray:
    """The points, below `until`, of a renewal process with mean gap 1."""
    points = np.array([first_gap(kind, shape, rng)])
    block = math.ceil(1.05 * until) + 64
    while points[-1] < until:
        points = np.concatenate([points, points[-1] + np.cumsum(gaps(kind, shape, block, rng))])
    return points[points < until]


def renewal_arrivals(rate: Rate, kind: GapKind, shape: float, rng: np.random.Generator) -> FloatArray:
    """The seconds, in order, at which requests come at that rate."""
    return rate.when(unit_points(kind, shape, rate.expected_requests, rng))
