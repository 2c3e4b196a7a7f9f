"""What a replica says to run, told to whoever becomes its owner."""

from dataclasses import dataclass

from deployments.scheduling import Lease


@dataclass(frozen=True, slots=True)
class Running:
    """A lease that a replica says to run. `started`: its answer has begun."""

    lease: Lease
    started: bool
