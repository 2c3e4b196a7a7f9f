"""A request at its gateway's dispatcher: who has it, what is waited for, and how a wait can end other than by a
placement."""

import asyncio
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from itertools import islice

from deployments.cell.departure import MAX_DIGESTS, Lost
from deployments.ownership.roles import Owner, PeerLease
from deployments.peering import HopFacts, HopRefusal
from deployments.scheduling import Admission, Lease, Placement, Request


class QueueTimeout(Exception):
    """The request waited in its lane for as long as it may."""


class Rejected(Exception):
    """The request is turned away though it was taken in: it lost its replica before it saw it, and its lane takes no
    more; or it waits in vain."""

    def __init__(self, admission: Admission) -> None:
        super().__init__(admission.cause)
        self.admission = admission


class GuestNotTaken(Exception):
    """A guest of a peer cell is not taken; it waits at its home."""

    def __init__(self, refusal: HopRefusal) -> None:
        super().__init__(refusal.value)
        self.refusal = refusal


@dataclass(slots=True, eq=False)
class PendingRequest:
    """One request. `owner` has it, under whichever epoch; None: nobody does, and it may be handed on from `again_s` on.
    `answered`: its first token is there. `complete`: its replica has sent the whole answer, and may go. `hop`: by which
    it came from a peer cell."""

    request: Request
    admission: asyncio.Future[Admission]
    placement: asyncio.Future[Placement | PeerLease]
    owner: Owner | None = None
    admitted: bool = False
    again_s: float = 0.0
    lease: Lease | None = None
    url: str = ""
    epoch: int = 0
    answered: bool = False
    complete: bool = False
    tell_lost: Callable[[], None] | None = None
    hop: HopFacts | None = None

    def holds(self, lease: Lease) -> bool:
        """Whether this is its lease now, and not one before."""
        return self.lease is not None and self.lease.attempt == lease.attempt

    def hear_again(self, admission: Admission) -> None:
        """Another answer of the owner's: a rejection ends the wait."""
        if not admission.accepted and not self.placement.done():
            self.placement.set_exception(Rejected(admission))

    def lose(self) -> None:
        """The replica that runs it is lost, or the peer cell."""
        self.url = ""
        tell, self.tell_lost = self.tell_lost, None
        if tell is not None:
            tell()

    def expire(self) -> None:
        """It has waited for as long as it may."""
        if not self.admission.done():
            self.admission.set_exception(QueueTimeout())
        elif not self.placement.done():
            self.placement.set_exception(QueueTimeout())

    def wait_again(self, attempt: int) -> None:
        """Its lease, the `attempt`-th, was of no use: nobody has the request now, and another placement is waited
        for."""
        self.request = replace(self.request, attempts=attempt)
        self.placement = asyncio.get_running_loop().create_future()
        self.lease, self.owner, self.tell_lost, self.answered, self.complete = None, None, None, False, False

    def read(self) -> None:
        """Nobody waits for it any more. An error that came in the same moment is nobody's; asyncio would log it."""
        for answer in (self.admission, self.placement):
            if answer.done() and not answer.cancelled():
                answer.exception()


def lost_with(pending_requests: Collection[PendingRequest]) -> Lost:
    """What is lost if the gateway of these requests ends. Those that wait in a lane have no tokens booked."""
    tokens = sum(pending.lease.tokens for pending in pending_requests if pending.lease is not None)
    keys = tuple(pending.request.key for pending in islice(pending_requests, MAX_DIGESTS))
    return Lost(len(pending_requests), 0, tokens, keys)
