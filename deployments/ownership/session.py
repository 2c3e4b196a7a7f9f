"""Another gateway's requests at the owner: this end of the channel (`messages.py`). `remote_owner.py` is the other end."""

import time
from collections.abc import AsyncIterator

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
from deployments.ownership.outbox import Outbox
from deployments.protocol import ReplicaState
from deployments.scheduling import Admission, Lease, Placement, Suspicion


class Session:
    """The holder that stands for another gateway, as long as its channel stands. `channel` numbers those that it has opened.

    It is closed from the start (`is_open`) where a later one of that gateway came first.
    """

    def __init__(self, owner: LaneOwner, gateway_id: str, channel: int = 0) -> None:
        self.gateway_id = gateway_id
        self._owner = owner
        self._outbox = Outbox()
        self.is_open = owner.join(self, gateway_id, channel)

    def take(self, message: Message) -> None:
        """Does what the other gateway asks; nothing once it is closed."""
        if not self.is_open:
            return
        owner, now = self._owner, time.monotonic()
        match message:
            case Submit(waiting, admitted):
                owner.submit(self, waiting.request(now), admitted)
            case Cancel(request_id):
                owner.cancel(request_id)
            case Hold(engine_id):
                owner.hold(self, engine_id)
            case FirstToken(engine_id):
                owner.first_token(engine_id)
            case Died(engine_id):
                owner.died(engine_id)
            case Release(engine_id, ending):
                owner.release(engine_id, ending)
            case Refused(waiting, replica_id, attempt, state):
                lease = Lease(0, waiting.request(now), replica_id, now, attempt, 0, 0, 0, 0)
                owner.refused(self, lease, None if state is None else ReplicaState(state))
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
        """See `roles.Holder`."""
        self._send(admitted_of(request_id, admission))

    def placed(self, placement: Placement, url: str) -> None:
        """See `roles.Holder`."""
        self._send(placed_of(placement, url))

    def expired(self, request_id: str) -> None:
        """See `roles.Holder`."""
        self._send(Expired(request_id))

    def suspected(self, told: tuple[Suspicion, ...]) -> None:
        """See `roles.Holder`."""
        for one in told:
            self._send(suspected_of(one, time.monotonic()))

    def moved(self) -> None:
        """See `roles.Holder`."""
        self.end()

    def _send(self, message: Message) -> None:
        self._outbox.put(encode(message))
