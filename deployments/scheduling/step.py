"""What one step of the scheduler decided."""

from dataclasses import dataclass

from deployments.scheduling.admission import Admission
from deployments.scheduling.lease import Placement
from deployments.scheduling.request import Request


@dataclass(frozen=True, slots=True)
class TurnedAway:
    """A request that waited, and is turned away after all: `admission` says why, and when to come back."""

    request: Request
    admission: Admission


@dataclass(frozen=True, slots=True)
class Step:
    """Requests placed, requests whose wait ran out, and those for which it would."""

    placements: tuple[Placement, ...]
    expired: tuple[Request, ...]
    turned_away: tuple[TurnedAway, ...] = ()
