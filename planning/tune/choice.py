"""Which of the tried settings to propose.

The cheapest that keep every class's promise, and would have kept it had the day's half-hours fallen otherwise: what is chosen for a day that was seen
must hold on days that were not, and the cheapest settings that just keep a promise on one day break it on every other. So half-hours are drawn with
replacement (a block bootstrap: misses come in bursts, so single requests may not be drawn), and the promise must hold in 9 of 10 such days.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from planning.tune.played import Played
from planning.tune.trial import Trial

_DRAWS = 1_000
_DOUBT = 0.1


class Ground(StrEnum):
    """Why those were chosen."""

    SURE = "sure"
    """The cheapest that keep every promise in 9 of 10 days drawn from this one."""
    KEPT = "kept"
    """None is as sure as that: the cheapest that kept every promise on this day."""
    NEAREST = "nearest"
    """None kept every promise: those that come nearest."""


@dataclass(frozen=True, slots=True)
class Chosen:
    """The proposal."""

    trial: Trial
    ground: Ground


def choose(trials: Sequence[Trial], promises: Mapping[str, float]) -> Chosen:
    """One of the finished trials that have settings. Raises ValueError where there is none."""
    able = [trial for trial in trials if trial.finished and trial.candidate is not None]
    if not able:
        raise ValueError("no settings were played to the end; needed: at least one run")
    kept = [trial for trial in able if _exact(trial).slack(promises) >= 0]
    sure = [trial for trial in kept if sure_slack(_exact(trial), promises) >= 0]
    if kept:
        return Chosen(min(sure or kept, key=lambda trial: _exact(trial).replica_hours), Ground.SURE if sure else Ground.KEPT)
    return Chosen(max(able, key=lambda trial: (_exact(trial).slack(promises), -_exact(trial).replica_hours)), Ground.NEAREST)


def sure_slack(played: Played, promises: Mapping[str, float]) -> float:
    """By how much the class with the least of it keeps its promise in all but one of ten days drawn from this one."""
    assert played.exact is not None
    rng = np.random.default_rng(0)
    least = np.inf
    for name, (requests, kept) in sorted(played.exact.slots.items()):
        drawn = rng.integers(0, len(requests), (_DRAWS, len(requests)))
        total = np.maximum(requests[drawn].sum(axis=1), 1)
        least = min(least, float(np.quantile(kept[drawn].sum(axis=1) / total, _DOUBT)) - promises[name])
    return least


def _exact(trial: Trial) -> Played:
    assert trial.exact is not None
    return trial.exact
