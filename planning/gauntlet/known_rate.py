"""The known-rate baseline: the best causal policy that knows the expected load, including the future, but not the
arrivals. It shows which part of the distance to the oracle is unavoidable.

    factor     needed(t) = ceil(h * load(t))
    root       needed(t) = ceil(load(t) + h * sqrt(load(t)))        square-root staffing (Halfin and Whitt, Operations
               Research 29(3), 1981)

`load`: the expected load in replicas (`serving.py`), scheduled like the oracle's. h: the smallest value with which the
SLO is met on average over the judged runs; the cheaper of the two forms there.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated

import numpy as np
from pydantic import Field

from planning.gauntlet.oracle import Oracle, ScheduleOutcome
from planning.gauntlet.scenario import ScenarioRun
from planning.gauntlet.schedule import BIN_S, Needed

_FIRST_H, _MAX_H = 4.0, 64.0
"""Traffic in salvos needs many times the rate: the range is doubled from the first value up to the maximum."""
HALVINGS = 5
"""Bisections of the range of h, for each form."""


class Form(StrEnum):
    FACTOR = "factor"
    ROOT = "root"


@dataclass(frozen=True, slots=True)
class Headroom:
    form: Form
    h: Annotated[float, Field(allow_inf_nan=False)]

    def needed(self, run: ScenarioRun) -> Needed:
        middles = (np.arange(math.ceil(run.until_s / BIN_S)) + 0.5) * BIN_S
        load = np.array([max(run.load(at_s - BIN_S / 4), run.load(at_s + BIN_S / 4)) for at_s in middles.tolist()])
        desired = self.h * load if self.form is Form.FACTOR else load + self.h * np.sqrt(load)
        return np.ceil(desired - 1e-9).astype(np.int64)


def tuned(runs: Sequence[ScenarioRun], target: float, halvings: int = HALVINGS) -> Headroom:
    """The cheaper form with the smallest h that meets the SLO on average over the runs; if none does, the maximum."""
    found = [minimum for form in Form if (minimum := _minimum(runs, form, target, halvings)) is not None]
    return min(found, key=lambda one: one[0])[1] if found else Headroom(Form.FACTOR, _MAX_H)


def outcome(run: ScenarioRun, headroom: Headroom, target: float) -> ScheduleOutcome:
    return Oracle(run, target, 1).run(headroom.needed(run))


def _minimum(runs: Sequence[ScenarioRun], form: Form, target: float, halvings: int) -> tuple[float, Headroom] | None:
    """The smallest h of a form that meets the SLO, and its replica-hours: the range is doubled until its upper end
    meets it, then bisected."""
    low, headroom = (0.8 if form is Form.FACTOR else 0.0), Headroom(form, _FIRST_H)
    kept, hours = _judged(runs, headroom, target)
    while not kept and headroom.h < _MAX_H:
        low, headroom = headroom.h, Headroom(form, 2 * headroom.h)
        kept, hours = _judged(runs, headroom, target)
    if not kept:
        return None
    best = (hours, headroom)
    for _ in range(halvings):
        headroom = Headroom(form, (low + best[1].h) / 2)
        kept, hours = _judged(runs, headroom, target)
        if kept:
            best = (hours, headroom)
        else:
            low = headroom.h
    return best


def _judged(runs: Sequence[ScenarioRun], headroom: Headroom, target: float) -> tuple[bool, float]:
    tried = [outcome(run, headroom, target).score for run in runs]
    return float(np.mean([one.attainment for one in tried])) >= target, float(
        np.mean([one.replica_hours for one in tried])
    )
