"""Regret: what a law's picks took beyond the oracle, split at what knows the rate.

    law - oracle  =  (knows the rate - oracle)  +  (law - knows the rate)
                     nobody could have saved       the law's own

Pure.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from planning.gauntlet.results import Contest


@dataclass(frozen=True, slots=True)
class Regret:
    """Replica-hours of a law's pick over one or several scenarios, split: what knows the arrivals, what of the rest nobody could know, what is the
    law's."""

    law: str
    attainment: float
    hours: float
    oracle: float
    unavoidable: float
    flaps: float
    usd: float

    @property
    def ours(self) -> float:
        """What the law took beyond what knows the rate."""
        return self.hours - self.oracle - self.unavoidable

    @property
    def share(self) -> float:
        """That, as a share of the oracle's replica-hours."""
        return self.ours / self.oracle if self.oracle else math.nan


def regret(contests: Sequence[Contest], law: str) -> Regret | None:
    """Of the law's picks over these scenarios together; None where it took part in none."""
    found = [(contest, one.picked) for contest in contests if (one := contest.of(law)) is not None]
    if not found:
        return None
    requests = np.concatenate([[score.requests for score in point.scores] for _, point in found])
    attained = np.concatenate([point.attainments for _, point in found])
    oracle = sum(float(contest.oracle_hours.mean()) for contest, _ in found)
    known = sum(float(contest.known_hours.mean()) for contest, _ in found)
    return Regret(
        law,
        float(np.average(attained, weights=requests)) if requests.any() else 1.0,
        sum(point.mean_hours for _, point in found),
        oracle,
        known - oracle,
        sum(point.mean_of("flaps") for _, point in found),
        sum(point.mean_of("usd") for _, point in found),
    )
