"""What one step of the scheduler decided."""

from dataclasses import dataclass

from deployments.scheduling.lease import Placement
from deployments.scheduling.request import Request


@dataclass(frozen=True, slots=True)
class Step:
    """Requests placed, and requests whose wait ran out."""

    placements: tuple[Placement, ...]
    expired: tuple[Request, ...]
