"""Which settings that were only looked at deserve a run of the whole, and which of those that were run to propose.
Pure.

Propose: the cheapest that keep every class's SLO, and would have kept it had the day's half-hours fallen otherwise:
what is chosen for a day that was seen must hold on days that were not, and the cheapest settings that just keep an SLO
on one day break it on every other. So half-hours are drawn with replacement (a block bootstrap: misses come in bursts,
so single requests may not be drawn), and the SLO must hold in 9 of 10 such days.

Run: first looks are estimates, since parts of the traffic miss some of its bursts, and one day does not make an SLO
sure. What runs of the whole said beyond their own first looks corrects the others: hours by a factor, and the SLO by a
gap g that is known to within d.

    worth = (hours of the cheapest that surely keep every SLO - factor * hours looked at) * P(slack looked at >= g)

with P normal with deviation d: the expected saving (J. Mockus: expected improvement, 1974). While none surely does, the
likeliest is run.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from statistics import NormalDist, fmean, median, pstdev

import numpy as np

from planning.tune.trial import TrialResult, TuningTrial

_DRAWS = 1_000
_DOUBT = 0.1


class Ground(StrEnum):
    SURE = "sure"
    """The cheapest that meet every SLO in 9 of 10 days drawn from this one."""
    KEPT = "kept"
    """None is as sure as that: the cheapest that met every SLO on this day."""
    NEAREST = "nearest"
    """None met every SLO: those that come nearest."""


@dataclass(frozen=True, slots=True)
class Chosen:
    trial: TuningTrial
    ground: Ground


def choose(trials: Sequence[TuningTrial], slos: Mapping[str, float]) -> Chosen:
    """One of the finished trials that have settings, of which there is at least one."""
    able = [trial for trial in trials if trial.finished and trial.candidate is not None]
    kept = [trial for trial in able if trial.whole.slack(slos) >= 0]
    sure = [trial for trial in kept if sure_slack(trial.whole, slos) >= 0]
    if kept:
        return Chosen(
            min(sure or kept, key=lambda trial: trial.whole.replica_hours), Ground.SURE if sure else Ground.KEPT
        )
    return Chosen(max(able, key=lambda trial: (trial.whole.slack(slos), -trial.whole.replica_hours)), Ground.NEAREST)


def sure_slack(outcome: TrialResult, slos: Mapping[str, float]) -> float:
    """By how much the class with the least of it meets its SLO in all but one of ten days drawn from this one."""
    assert outcome.exact is not None
    rng = np.random.default_rng(0)
    minimum = np.inf
    for name, (requests, kept) in sorted(outcome.exact.slots.items()):
        drawn = rng.integers(0, len(requests), (_DRAWS, len(requests)))
        total = np.maximum(requests[drawn].sum(axis=1), 1)
        minimum = min(minimum, float(np.quantile(kept[drawn].sum(axis=1) / total, _DOUBT)) - slos[name])
    return minimum


_MIN_GAIN = 0.005
"""What would save a smaller share is not worth a run."""
_NEAR = 1.5
"""Runs that took so many times the hours of the cheapest say nothing of its neighbours."""
_MIN_DOUBT = 0.2
"""The least deviation of the gap, as a share of what the tightest SLO allows to miss."""


@dataclass(frozen=True, slots=True)
class Correction:
    """What runs of the whole say beyond first looks. `best`: the fewest hours that surely meet every SLO, infinite
    while none do."""

    factor: float
    gap: float
    doubt: float
    best: float


def correction(trials: Sequence[TuningTrial], slos: Mapping[str, float]) -> Correction:
    """From all that was both looked at and run."""
    runs = [
        (trial.draft, trial.exact)
        for trial in trials
        if trial.candidate is not None and trial.exact is not None and trial.finished
    ]
    best = min((exact.replica_hours for _, exact in runs if sure_slack(exact, slos) >= 0), default=math.inf)
    cheapest = min((exact.replica_hours for _, exact in runs), default=math.inf)
    both = [(draft, exact) for draft, exact in runs if draft is not None and not draft.stopped and draft.replica_hours]
    both = [(draft, exact) for draft, exact in both if exact.replica_hours < _NEAR * cheapest] or both
    gaps = [draft.slack(slos) - sure_slack(exact, slos) for draft, exact in both]
    minimum = _MIN_DOUBT * (1 - max(slos.values(), default=0.99))
    factor = median([exact.replica_hours / draft.replica_hours for draft, exact in both]) if both else 1.0
    return Correction(factor, fmean(gaps) if gaps else 0.0, max(minimum, pstdev(gaps) if gaps else 0.0), best)


def most_promising(trials: Sequence[TuningTrial], slos: Mapping[str, float]) -> TuningTrial | None:
    """The one that is worth most; None where no run is worth its time."""
    known = correction(trials, slos)
    left = [
        (trial, known.factor * trial.draft.replica_hours, (trial.draft.slack(slos) - known.gap) / known.doubt)
        for trial in trials
        if trial.draft is not None and trial.exact is None and not trial.draft.stopped
    ]
    if math.isinf(known.best):
        return max(left, key=lambda one: (one[2], -one[1]), default=(None, 0.0, 0.0))[0]
    worth = [(trial, (known.best - hours) * NormalDist().cdf(sigmas)) for trial, hours, sigmas in left]
    trial, maximum = max(worth, key=lambda one: one[1], default=(None, 0.0))
    return trial if maximum > _MIN_GAIN * known.best / 2 else None
