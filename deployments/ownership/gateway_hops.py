"""Hops at the gateway that makes them: of its own clients' requests, to peer cells (`hop_messages.py`). A part of the
dispatcher.

The dispatcher knows which hop a request is on, and under which owner. What posts the body to the peer, and relays its
answer, is the request's `HopCarrier` (in `deployments/gateway/peers`). It says here what happens, and the owner hears.

    a hop is       and when its owner is gone, or another one decides
    offered        it is dropped: the request waits at the next owner as if it had never been offered
    confirmed      it goes on, and no owner knows of it; if it breaks before the first byte its request waits again
    answering      it goes on
"""

from collections.abc import Callable
from dataclasses import dataclass

from deployments.ownership.hop_messages import (
    HopBroke,
    HopFinished,
    HopFirstByte,
    HopRejected,
    HopReport,
    HopTaken,
)
from deployments.ownership.record import GuestNotTaken, HopCarrier, Records, RequestState, TakenByPeer
from deployments.ownership.roles import Owner
from deployments.peering import HopFacts, HopRefusal


@dataclass(slots=True, eq=False)
class GatewayHop:
    """One hop: to which peer, its number, and the owner that decided on it. `confirmed`: the request has left its lane.
    `answering`: its client has got a byte."""

    peer: str
    number: int
    owner: Owner
    carrier: HopCarrier
    confirmed: bool = False
    answering: bool = False


class GatewayHops:
    """Of one dispatcher. `owner`: who decides now; `hand_on`: a request is nobody's, and goes to the owner."""

    def __init__(
        self,
        records: Records,
        owner: Callable[[], Owner | None],
        hand_on: Callable[[], None],
    ) -> None:
        self._records = records
        self._owner = owner
        self._hand_on = hand_on
        self._hops: dict[str, GatewayHop] = {}

    def get(self, request_id: str) -> GatewayHop | None:
        """The request's hop, while there is one."""
        return self._hops.get(request_id)

    # What the owner says (`roles.Submitter`).
    def offered(self, peer: str, hop: HopFacts) -> None:
        """Passed on to the request's carrier. Where there is none, the hop breaks at once."""
        owner, pending = self._owner(), self._records.client_of(hop.request_id)
        if owner is None or pending is None:
            return
        if pending.carrier is None or not pending.awaits_placement:
            owner.hop_reported(HopBroke(hop.request_id, hop.number))
            return
        self._hops[hop.request_id] = GatewayHop(peer, hop.number, owner, pending.carrier)
        pending.carrier.offer(peer, hop)

    def confirmed(self, request_id: str, number: int) -> None:
        """`Dispatcher.placement` raises TakenByPeer."""
        hop, pending = self._current(request_id, number), self._records.client_of(request_id)
        if hop is None or pending is None or not pending.awaits_placement:
            return  # its client left a moment ago, and the owner has heard so
        hop.confirmed = pending.is_away = True
        pending.fail(TakenByPeer(hop.peer, number))

    def withdrawn(self, request_id: str, number: int) -> None:
        """The peer is to drop it, unless its client has got a byte."""
        hop = self._current(request_id, number)
        if hop is None or hop.answering:
            return
        if not hop.confirmed:
            del self._hops[request_id]
        hop.carrier.withdraw(number)

    def guest_refused(self, request_id: str, refusal: HopRefusal) -> None:
        """`Dispatcher.submit` raises GuestNotTaken."""
        pending = self._records.client_of(request_id)
        if pending is not None and pending.answer is not None and not pending.answer.done():
            pending.fail(GuestNotTaken(refusal))

    # What the carrier, and whoever relays, says.
    def taken(self, request_id: str, number: int) -> None:
        """The peer took it. Nothing of its answer may reach the client before `Dispatcher.placement` has raised
        TakenByPeer."""
        hop = self._current(request_id, number)
        if hop is not None:
            self._report(hop, HopTaken(request_id, number))

    def rejected(self, request_id: str, number: int, refusal: HopRefusal) -> None:
        """The peer did not take it."""
        hop = self._current(request_id, number)
        if hop is not None and not hop.confirmed:
            del self._hops[request_id]
            self._report(hop, HopRejected(request_id, number, refusal))

    def first_byte(self, request_id: str, number: int) -> bool:
        """The client is about to get the first byte. False: it may not, since the hop is not confirmed, or over."""
        hop = self._current(request_id, number)
        if hop is None or not hop.confirmed:
            return False
        if not hop.answering:
            hop.answering = True
            self._report(hop, HopFirstByte(request_id, number))
        return True

    def finished(self, request_id: str, number: int) -> None:
        """The client has the whole answer."""
        hop = self._current(request_id, number)
        if hop is not None:
            del self._hops[request_id]
            self._report(hop, HopFinished(request_id, number))
            self._leave(request_id)

    def broke(self, request_id: str, number: int) -> None:
        """The peer cannot be reached, or its answer broke. After the first byte the request is over; before it, the
        request waits at home, and `Dispatcher.placement` must be awaited again if it had raised TakenByPeer."""
        hop, pending = self._current(request_id, number), self._records.client_of(request_id)
        if hop is None:
            return
        if hop.answering or pending is None:
            del self._hops[request_id]
            self._report(hop, HopBroke(request_id, number))
            self._cancel(hop, request_id)
            self._leave(request_id)
            return
        del self._hops[request_id]
        if hop.confirmed:
            self._records.come_back(pending, hop.owner is self._owner())
        self._report(hop, HopBroke(request_id, number))
        if pending.state is RequestState.UNOWNED:
            self._hand_on()

    def client_left(self, request_id: str, number: int) -> None:
        """Its client is gone while the hop's answer is relayed."""
        hop = self._current(request_id, number)
        if hop is not None:
            del self._hops[request_id]
            hop.carrier.withdraw(number)
            self._cancel(hop, request_id)
            self._leave(request_id)

    # What the dispatcher says.
    def drop(self, request_id: str) -> None:
        """Home has placed the request, or nobody waits for it any more: a peer that was asked is to drop it."""
        hop = self._hops.pop(request_id, None)
        if hop is not None:
            hop.carrier.withdraw(hop.number)

    def owner_changed(self) -> None:
        """What is offered and not confirmed is dropped."""
        for request_id, hop in list(self._hops.items()):
            if not hop.confirmed:
                self.drop(request_id)

    def _current(self, request_id: str, number: int) -> GatewayHop | None:
        hop = self._hops.get(request_id)
        return hop if hop is not None and hop.number == number else None

    def _leave(self, request_id: str) -> None:
        if (pending := self._records.client_of(request_id)) is not None:
            self._records.leave(pending)

    def _cancel(self, hop: GatewayHop, request_id: str) -> None:
        owner = self._owner()
        if owner is hop.owner:
            owner.cancel(request_id)

    def _report(self, hop: GatewayHop, report: HopReport) -> None:
        """The owner hears it that decided on the hop. To another one its number means nothing."""
        owner = self._owner()
        if owner is hop.owner:
            owner.hop_reported(report)


class HopSubmitter:
    """The part of `roles.Submitter` that is about hops, for the dispatcher. `hops`: those that this gateway makes."""

    hops: GatewayHops

    def hop_offered(self, peer: str, hop: HopFacts) -> None:
        self.hops.offered(peer, hop)

    def hop_confirmed(self, request_id: str, number: int) -> None:
        self.hops.confirmed(request_id, number)

    def hop_withdrawn(self, request_id: str, number: int) -> None:
        self.hops.withdrawn(request_id, number)

    def guest_refused(self, request_id: str, refusal: HopRefusal) -> None:
        self.hops.guest_refused(request_id, refusal)
