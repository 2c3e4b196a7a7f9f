"""The two roles around a model's requests: who holds their clients, and who decides on them.

A gateway holds requests at its dispatcher (`dispatcher.py`). It asks the owner: the scheduler in its own process
(`lane_owner.py`), or that of another gateway, over a channel (`channel.py`). A session (`channel.py`) is the submitter
that stands, at the owner, for another gateway.
"""

from dataclasses import dataclass
from typing import Protocol

from deployments.peering import HopFacts, HopRefusal, Offer
from deployments.protocol import Finished, ReplicaState
from deployments.scheduling import Admission, Ending, Lease, Placement, Request, Suspicion


@dataclass(frozen=True, slots=True)
class PeerLease(Offer):
    """A request is handed over to the cell `peer`. A peer is a kind of replica: its lease ends as any other, and books
    nothing here."""

    lease: Lease


class Submitter(Protocol):
    """Holds requests; the owner calls these methods with its decisions on them. None of them may block or raise."""

    def admitted(self, request_id: str, admission: Admission) -> None:
        """The answer to `submit`; also to a refused request for which there is no room any more, and to one that would
        wait in vain."""

    def placed(self, placement: Placement, url: str) -> None:
        """A request got a lease on the replica that listens at `url`."""

    def expired(self, request_id: str) -> None:
        """A request waited for as long as it may."""

    def moved(self) -> None:
        """The owner decides nothing more."""

    def suspected(self, reported: tuple[Suspicion, ...]) -> None:
        """Whose standing as a query of death has changed."""

    def handed_over(self, peer_lease: PeerLease) -> None:
        """A request got a lease at a peer cell."""

    def recalled(self, attempt_id: str) -> None:
        """The peer cell of that lease is silent: unless its client has a byte, the request is to come back."""

    def guest_refused(self, request_id: str, refusal: HopRefusal) -> None:
        """The answer to `submit` of a guest that is not taken."""


class Owner(Protocol):
    """Whoever decides. Leases are named by their `attempt_id`, which is the same for every owner; what an owner does
    not know it ignores.

    `epoch` says under which ownership it decides; the engines refuse a lease whose epoch was overtaken.
    """

    epoch: int

    def submit(
        self, submitter: Submitter, request: Request, admitted: bool = False, hop: HopFacts | None = None
    ) -> None:
        """Takes a request in; the answer comes by `Submitter.admitted`. `admitted`: an owner before had taken it in.
        `hop`: by which a guest of a peer cell came, whose answer may be `Submitter.guest_refused`."""

    def cancel(self, request_id: str) -> None:
        """A request that waits is given up."""

    def hold(self, submitter: Submitter, attempt_id: str, replica_id: str = "") -> None:
        """The submitter has a lease of an owner before, on that replica or at that peer cell."""

    def first_token(self, attempt_id: str, ago_s: float = 0.0) -> None:
        """The first token of a lease is there, since `ago_s`: its prompt is prefilled."""

    def died(self, attempt_id: str) -> None:
        """The replica, or its engine, died while it ran that lease; of a lease at a peer cell: one of the peer's. The
        lease stands until it is released or refused."""

    def release(self, attempt_id: str, ending: Ending) -> None:
        """A lease ended."""

    def refused(self, submitter: Submitter, lease: Lease, state: ReplicaState | HopRefusal | None) -> None:
        """A lease's replica took no work (None: no connection), or a peer cell did not: its request waits again,
        before all others."""

    def peer_finished(self, message: Finished) -> None:
        """A peer cell's account of a request whose lease there has ended."""


class Channels:
    """Which channel of each other gateway is its last, as the owner of a model sees them.

    A gateway has one channel to the owner at a time. Where it opens another, the one before may still look alive here,
    and still bring what was sent on it: that is out of date from then on. The channels are numbered by the gateway,
    since they may arrive in another order than they were opened. The number of the last one is remembered as long as
    the owner is.
    """

    def __init__(self) -> None:
        self._last: dict[str, tuple[int, Submitter | None]] = {}

    def open(self, submitter: Submitter, gateway_id: str, number: int) -> bool:
        """A channel opens, and the one before is ended. False for one that a later one has overtaken on the way."""
        last, before = self._last.get(gateway_id, (number, None))
        if number < last:
            return False
        self._last[gateway_id] = number, submitter
        if before is not None:
            before.moved()
        return True

    @property
    def open_ones(self) -> list[Submitter]:
        """The last of each gateway, where it stands."""
        return [submitter for _, submitter in self._last.values() if submitter is not None]

    def ended(self, submitter: Submitter) -> None:
        """A channel ended; one that is not the last is no error."""
        for gateway_id, (number, last) in self._last.items():
            if last is submitter:
                self._last[gateway_id] = number, None

    def end_all(self) -> None:
        """The owner decides nothing more."""
        for _, submitter in tuple(self._last.values()):
            if submitter is not None:
                submitter.moved()
