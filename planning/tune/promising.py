"""Which of the settings that were only looked at deserves a run of the whole. Pure.

First looks are estimates: parts of the traffic miss some of its bursts, and one day does not make a promise sure. What runs of the whole said beyond
their own first looks corrects the others: hours by a factor, and the promise by a gap g that is known to within d.

    worth = (hours of the cheapest that surely keep every promise - factor * hours looked at) * P(slack looked at >= g)        P: normal, deviation d

the expected saving (J. Mockus: expected improvement, 1974). While none surely does, the likeliest is run.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist, fmean, median, pstdev

from planning.tune.choice import sure_slack
from planning.tune.trial import Trial

_LEAST_GAIN = 0.005
"""What would save a smaller share is not worth a run."""
_NEAR = 1.5
"""Runs that took so many times the hours of the cheapest say nothing of its neighbours."""
_LEAST_DOUBT = 0.2
"""Of what the tightest promise allows to miss: the least deviation of the gap."""


@dataclass(frozen=True, slots=True)
class Correction:
    """What runs of the whole say beyond first looks. `best`: the fewest hours that surely keep every promise, infinite while none do."""

    factor: float
    gap: float
    doubt: float
    best: float


def correction(trials: Sequence[Trial], promises: Mapping[str, float]) -> Correction:
    """From all that was both looked at and played."""
    runs = [(trial.draft, trial.exact) for trial in trials if trial.candidate is not None and trial.exact is not None and trial.finished]
    best = min((exact.replica_hours for _, exact in runs if sure_slack(exact, promises) >= 0), default=math.inf)
    cheapest = min((exact.replica_hours for _, exact in runs), default=math.inf)
    both = [(draft, exact) for draft, exact in runs if draft is not None and draft.stopped is None and draft.replica_hours]
    both = [(draft, exact) for draft, exact in both if exact.replica_hours < _NEAR * cheapest] or both
    gaps = [draft.slack(promises) - sure_slack(exact, promises) for draft, exact in both]
    least = _LEAST_DOUBT * (1 - max(promises.values(), default=0.99))
    factor = median([exact.replica_hours / draft.replica_hours for draft, exact in both]) if both else 1.0
    return Correction(factor, fmean(gaps) if gaps else 0.0, max(least, pstdev(gaps) if gaps else 0.0), best)


def most_promising(trials: Sequence[Trial], promises: Mapping[str, float]) -> Trial | None:
    """The one that is worth most; None where no run is worth its time."""
    known = correction(trials, promises)
    left = [
        (trial, known.factor * trial.draft.replica_hours, (trial.draft.slack(promises) - known.gap) / known.doubt)
        for trial in trials
        if trial.draft is not None and trial.exact is None and trial.draft.stopped is None
    ]
    if math.isinf(known.best):
        return max(left, key=lambda one: (one[2], -one[1]), default=(None, 0.0, 0.0))[0]
    worth = [(trial, (known.best - hours) * NormalDist().cdf(sigmas)) for trial, hours, sigmas in left]
    trial, most = max(worth, key=lambda one: one[1], default=(None, 0.0))
    return trial if most > _LEAST_GAIN * known.best / 2 else None
