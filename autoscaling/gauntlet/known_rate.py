"""The best causal law that knows the rate, the coming one too, but not the arrivals: what of the distance to the oracle nobody could have avoided.

    factor     needed(t) = ceil(h * load(t))
    root       needed(t) = ceil(load(t) + h * sqrt(load(t)))        square-root staffing (Halfin and Whitt, Operations Research 29(3), 1981)

`load` is the expected load in replicas' worth (`load.py`), scheduled as the oracle's is. h is the least with which the promise is kept on average
over the plays that laws are judged on; of the two forms, the cheaper one there.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from autoscaling.gauntlet.oracle import Oracle, PlayedSchedule
from autoscaling.gauntlet.scenario import Play
from autoscaling.gauntlet.schedule import BIN_S, Needed

_MOST_H = 4.0
HALVINGS = 5
"""Of the range of h, for each form."""


class Form(StrEnum):
    """See the module's docstring."""

    FACTOR = "factor"
    ROOT = "root"


@dataclass(frozen=True, slots=True)
class Headroom:
    """What was found."""

    form: Form
    h: float

    def needed(self, play: Play) -> Needed:
        """Replicas in each bin of a play."""
        middles = (np.arange(math.ceil(play.until_s / BIN_S)) + 0.5) * BIN_S
        load = np.array([max(play.load(at_s - BIN_S / 4), play.load(at_s + BIN_S / 4)) for at_s in middles.tolist()])
        wanted = self.h * load if self.form is Form.FACTOR else load + self.h * np.sqrt(load)
        return np.ceil(wanted - 1e-9).astype(np.int64)


def tuned(plays: Sequence[Play], target: float, halvings: int = HALVINGS) -> Headroom:
    """The cheaper form with the least h that keeps the promise on average over the plays. Where none does, the most that is looked at."""
    found: list[tuple[bool, float, Headroom]] = []
    for form in Form:
        low, high, best = (0.8 if form is Form.FACTOR else 0.0), _MOST_H, None
        for step in range(halvings + 1):
            headroom = Headroom(form, high if step == 0 else (low + high) / 2)
            kept, hours = _judged(plays, headroom, target)
            if kept:
                high, best = headroom.h, (False, hours, headroom)
            elif step == 0:
                break
            else:
                low = headroom.h
        found.append(best or (True, 0.0, Headroom(form, _MOST_H)))
    return min(found, key=lambda one: one[:2])[2]


def played(play: Play, headroom: Headroom, target: float) -> PlayedSchedule:
    """A play with that headroom."""
    return Oracle(play, target, 1).play(headroom.needed(play))


def _judged(plays: Sequence[Play], headroom: Headroom, target: float) -> tuple[bool, float]:
    tried = [played(play, headroom, target).score for play in plays]
    return float(np.mean([one.attainment for one in tried])) >= target, float(np.mean([one.replica_hours for one in tried]))
