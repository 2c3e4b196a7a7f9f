"""The owner's end of a channel to another gateway (`channel.py`): a session is the submitter that stands for it."""

import time
from collections.abc import AsyncIterator

from deployments.ownership.channel import MessageOutbox
from deployments.ownership.hop_messages import (
    GuestRefused,
    HopBroke,
    HopConfirmed,
    HopFinished,
    HopFirstByte,
    HopOffered,
    HopRejected,
    HopTaken,
    HopWithdrawn,
    facts_of,
    read_facts,
)
from deployments.ownership.lane_owner import LaneOwner
from deployments.ownership.messages import (
    BEAT_S,
    Beat,
    Cancel,
    Died,
    Expired,
    FirstToken,
    Hold,
    Message,
    Refused,
    Release,
    Submit,
    admitted_of,
    encode,
    placed_of,
    suspected_of,
)
from deployments.peering import HopFacts, HopRefusal
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
                owner.submit(self, waiting.request(now), admitted, None if hop is None else read_facts(hop))
            case Cancel(request_id):
                owner.cancel(request_id, self)
            case Hold(attempt_id):
                owner.hold(self, attempt_id)
            case FirstToken(attempt_id):
                owner.first_token(attempt_id)
            case Died(attempt_id):
                owner.died(attempt_id)
            case Release(attempt_id, ending):
                owner.release(attempt_id, ending)
            case Refused(waiting, replica_id, attempt, state):
                lease = Lease(0, waiting.request(now), replica_id, now, attempt, 0, 0, 0, 0)
                owner.refused(self, lease, None if state is None else ReplicaState(state))
            case HopTaken() | HopRejected() | HopFirstByte() | HopFinished() | HopBroke():
                owner.hop_reported(message)
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

    def hop_offered(self, peer: str, hop: HopFacts) -> None:
        self._send(HopOffered(hop.request_id, peer, facts_of(hop)))

    def hop_confirmed(self, request_id: str, number: int) -> None:
        self._send(HopConfirmed(request_id, number))

    def hop_withdrawn(self, request_id: str, number: int) -> None:
        self._send(HopWithdrawn(request_id, number))

    def guest_refused(self, request_id: str, refusal: HopRefusal) -> None:
        self._send(GuestRefused(request_id, refusal))

    def moved(self) -> None:
        self.end()

    def _send(self, message: Message) -> None:
        self._outbox.put(encode(message))
