"""Judges simulated runs of one rate by the SLOs of their classes. Pure; `rates.py` calls it."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from planning.capacity.sampling import judged_part
from planning.simulator.outcome import SimulationOutcome
from planning.simulator.workload import Workload

LOST = 0.02
"""Of the arrivals, what may be turned away or pile up in the lanes; where it is more, what is completed is the
capacity."""
_DECISIVE = 9.0
"""One run decides where the number of its misses is so many square roots of the allowed number from it: four standard
deviations of misses that come five at a time."""


@dataclass(frozen=True, slots=True)
class RateSlo:
    """What a class's requests aim at: a `share` of them gets the first token within `ttft_s`, and of its answers a
    `share` has a mean time between tokens within `itl_s` (None: any)."""

    ttft_s: float
    share: float
    itl_s: float | None = None


class RateBound(StrEnum):
    """What a higher rate would break."""

    TTFT = "ttft"
    ITL = "itl"
    CAPACITY = "capacity"


@dataclass(frozen=True, slots=True)
class RateRun:
    """A run's requests and outcome."""

    work: Workload
    out: SimulationOutcome

    def of(self, traffic_class: str) -> NDArray[np.bool_]:
        """The judged requests of a class."""
        chosen = np.zeros(len(self.work), dtype=np.bool_)
        part = judged_part(len(self.work))
        numbers = range(len(self.work))[part]
        chosen[part] = [self.work.traffic_class[number] == traffic_class for number in numbers]
        return chosen


@dataclass(frozen=True, slots=True, order=True)
class Margin:
    """A requirement, and how much of what it allows is left: 1 where nobody missed, negative where it is broken.
    `decisive`: no further run will turn one that is so far from 0."""

    margin: float
    bound: RateBound
    decisive: float


def worst_margin(runs: Sequence[RateRun], slos: Mapping[str, RateSlo]) -> Margin:
    """The requirement that is nearest to being broken, or broken worst."""
    found = [Margin(1 - sum(map(lost_share, runs)) / len(runs) / LOST, RateBound.CAPACITY, 1.0)]
    for name, slo in slos.items():
        own = [(run.out, run.of(name)) for run in runs]
        ttft_s = np.concatenate([np.nan_to_num(out.ttft_s[chosen], nan=np.inf) for out, chosen in own])
        tpot_s = np.concatenate([out.tpot_s[chosen] for out, chosen in own])
        tpot_s = tpot_s[~np.isnan(tpot_s)]
        for values, bound, limit_s in ((ttft_s, RateBound.TTFT, slo.ttft_s), (tpot_s, RateBound.ITL, slo.itl_s)):
            if limit_s is not None and len(values):
                allowed = (1 - slo.share) * len(values)
                missed = float((values > limit_s).sum())
                found.append(Margin(1 - missed / allowed, bound, _DECISIVE / math.sqrt(allowed)))
    return min(found)


def lost_share(run: RateRun) -> float:
    """Of the judged arrivals, the share that was turned away, or by which more wait at the end."""
    out, part = run.out, judged_part(len(run.work))
    left_s = np.where(np.isnan(out.placed_s), out.expired_s, out.placed_s)
    left_s = np.where(out.rejected, out.arrived_s, left_s)
    first, last = (int(((out.arrived_s <= at) & ~(left_s <= at)).sum()) for at in out.arrived_s[part][[0, -1]])
    away = int((out.rejected | out.expired | out.failed)[part].sum())
    share: float = (away + max(0, last - first)) / (part.stop - part.start)
    return share


def ttft_within(runs: Sequence[RateRun], traffic_class: str, slo: RateSlo) -> float:
    """What a class's share of requests stays within; infinite where so many were not answered."""
    ttft_s = np.sort(np.concatenate([np.nan_to_num(r.out.ttft_s[r.of(traffic_class)], nan=np.inf) for r in runs]))
    return float(ttft_s[min(len(ttft_s) - 1, int(slo.share * len(ttft_s)))]) if len(ttft_s) else math.nan
