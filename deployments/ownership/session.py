"""The owner's end of a channel to another gateway (`channel.py`): a session is the submitter that stands for it."""

import time
from collections.abc import AsyncIterator

from deployments.ownership.channel import MessageOutbox
from deployments.ownership.lane_owner import LaneOwner
from deployments.ownership.messages import (
    BEAT_S,
    Beat,
    Cancel,
    Died,
    Expired,
    FirstToken,
    GuestRefused,
    Hold,
    Message,
    PlacedAtPeer,
    Recalled,
    Refused,
    Release,
    Submit,
    admitted_of,
    encode,
    placed_of,
    suspected_of,
)
from deployments.ownership.roles import PeerLease
from deployments.peering import HopRefusal
from deployments.protocol import ReplicaState
from deployments.scheduling import Admission, Lease, Placement, Suspicion


class Session:
    """The submitter that stands for another gateway, as long as its channel stands. `channel` numbers those that it has
    opened.

    It is closed from the start (`is_open`) where a later one of that gateway came first.
    """

    def __init__(self, owner: LaneOwner, gateway_id: str, channel: int = 0) -> None:
        self.gateway_id = gateway_id
        self._owner = owner
        self._outbox = MessageOutbox()
        self.is_open = owner.join(self, gateway_id, channel)

    def take(self, message: Message) -> None:
        """Does what the other gateway asks; nothing once it is closed."""
        if not self.is_open:
            return
        owner, now = self._owner, time.monotonic()
        match message:
            case Submit(waiting, admitted, hop):
                owner.submit(self, waiting.request(now), admitted, hop)
            case Cancel(request_id):
                owner.cancel(request_id, self)
            case Hold(attempt_id):
                owner.hold(self, attempt_id)
            case FirstToken(attempt_id, ago_s):
                owner.first_token(attempt_id, ago_s)
            case Died(attempt_id):
                owner.died(attempt_id)
            case Release(attempt_id, ending):
                owner.release(attempt_id, ending)
            case Refused(waiting, replica_id, attempt, state, refusal):
                lease = Lease(0, waiting.request(now), replica_id, now, attempt, 0, 0, 0, 0)
                owner.refused(self, lease, refusal if state is None else ReplicaState(state))
            case _:
                pass

    async def lines(self) -> AsyncIterator[bytes]:
        """What is to be sent, until the session ends."""
        yield encode(Beat())
        async for lines in self._outbox.pieces(BEAT_S, encode(Beat())):
            yield lines

    def end(self) -> None:
        """The channel broke, or is to: what waits is given up here (the other gateway takes it to the next owner)."""
        if self.is_open:
            self.is_open = False
            self._outbox.close()
            self._owner.left(self)

    def admitted(self, request_id: str, admission: Admission) -> None:
        self._send(admitted_of(request_id, admission))

    def placed(self, placement: Placement, url: str) -> None:
        self._send(placed_of(placement, url))

    def expired(self, request_id: str) -> None:
        self._send(Expired(request_id))

    def suspected(self, reported: tuple[Suspicion, ...]) -> None:
        for one in reported:
            self._send(suspected_of(one, time.monotonic()))

    def handed_over(self, peer_lease: PeerLease) -> None:
        self._send(PlacedAtPeer(peer_lease.peer, peer_lease.lease.attempt, peer_lease.hop, peer_lease.answer_s))

    def recalled(self, attempt_id: str) -> None:
        self._send(Recalled(attempt_id))

    def guest_refused(self, request_id: str, refusal: HopRefusal) -> None:
        self._send(GuestRefused(request_id, refusal))

    def moved(self) -> None:
        self.end()

    def _send(self, message: Message) -> None:
        self._outbox.put(encode(message))
