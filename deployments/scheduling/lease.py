"""A lease: the right to run one request on one replica. It ends in exactly one way (`reasons.Ending`)."""

from dataclasses import dataclass

from deployments.scheduling.reasons import PickReason
from deployments.scheduling.request import Request


@dataclass(frozen=True, slots=True)
class Lease:
    """`lease_id` is unique in its scheduler; `attempt` counts from 1 and grows when a draining replica refused the request before."""

    lease_id: int
    request: Request
    replica_id: str
    placed_s: float
    attempt: int


@dataclass(frozen=True, slots=True)
class Usage:
    """What the engine's own finished-request statistics say that a request took, over all its sequences."""

    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    preemptions: int


@dataclass(frozen=True, slots=True)
class Placement:
    """A decision of `Scheduler.step`: this request runs there, for this reason."""

    request: Request
    lease: Lease
    reason: PickReason

    @property
    def replica_id(self) -> str:
        """The replica that got the request."""
        return self.lease.replica_id
