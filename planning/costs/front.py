"""What requests take outside of the engine's steps, alone and beside others.

Beside others, a request also waits for the step that runs, since the engine's core looks for new ones between steps. Who comes at a random moment of
a window of T seconds waits, on average over that window,

    E[wait] = sum of step^2 / (2 T)                 (nobody waits while the engine is idle)

which the engine's model accounts for by itself, and which is therefore taken off what the ledger tells.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from deployments.engine_model.cost_model import Curve
from planning.costs.ledgers import Around
from planning.costs.steps import EngineSteps, samples

FRONT_SHARE = 0.6
"""Of what a request alone takes around the engine's steps, the part before them: it is read, checked and tokenised there, only written after."""


@dataclass(frozen=True, slots=True)
class Window:
    """Requests that came at random moments between two times of the monotonic clock, to `replicas` replicas that had `leases` each on average."""

    began_s: float
    ended_s: float
    leases: float
    arounds: tuple[Around, ...]


def mean_wait_s(logs: Sequence[EngineSteps], began_s: float, ended_s: float) -> float:
    """For the step that runs; the equation above, over all replicas."""
    squares = sum(sample.seconds**2 for log in logs for sample in samples(log.within(began_s, ended_s)))
    return squares / (2 * (ended_s - began_s) * len(logs))


def front_and_back(alone_s: float, windows: Sequence[Window], logs: Sequence[EngineSteps]) -> tuple[Curve, float]:
    """From placement to the engine by the number of leases, never falling; and the seconds from a step's end to the client."""
    back_s = (1 - FRONT_SHARE) * alone_s
    at, seconds = [0.0], [FRONT_SHARE * alone_s]
    for window in sorted(windows, key=lambda one: one.leases):
        around_s = float(np.mean([one.around_s for one in window.arounds])) if window.arounds else 0.0
        front_s = around_s - back_s - mean_wait_s(logs, window.began_s, window.ended_s)
        if window.leases > at[-1]:
            at.append(window.leases)
            seconds.append(max(front_s, seconds[-1]))
    return Curve((*at, at[-1] + 1.0), (*seconds, seconds[-1])), back_s
