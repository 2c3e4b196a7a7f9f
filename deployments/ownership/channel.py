"""A channel between a gateway and the owner of a model (`messages.py`): the gateway's end stands for the owner there,
the owner's end for the gateway. What one end is told the other says."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import replace

import aiohttp

from deployments.cell.owners import Ownership
from deployments.ownership import messages
from deployments.ownership.lane_owner import LaneOwner
from deployments.ownership.record import QUEUED, Records, RequestState
from deployments.ownership.roles import PeerLease, Submitter
from deployments.peering import HopFacts, HopRefusal
from deployments.protocol import Finished, ReplicaState
from deployments.scheduling import Admission, Ending, Lease, Placement, Request, Suspicion

_MAX_MESSAGES = 100_000
"""Beyond that the other end does not read: the outbox closes itself."""
_BEAT = messages.encode(messages.Beat())


class MessageOutbox:
    """Messages that are to be sent, taken out all at once by whoever writes. Never blocks who puts."""

    def __init__(self) -> None:
        self._messages = [messages.encode(messages.Opening(messages.VERSION))]
        self._filled = asyncio.Event()
        self._filled.set()
        self._closed = False

    def put(self, message: messages.Message) -> None:
        """Adds a message; nothing once it is closed."""
        if len(self._messages) >= _MAX_MESSAGES:
            self.close()
        if not self._closed:
            self._messages.append(messages.encode(message))
            self._filled.set()

    def close(self) -> None:
        """Ends `pieces`, after what is in."""
        self._closed = True
        self._filled.set()

    async def pieces(self) -> AsyncIterator[bytes]:
        """All that is in, as soon as something is; a beat where there was nothing for `BEAT_S`."""
        while not self._closed or self._messages:
            try:
                async with asyncio.timeout(messages.BEAT_S):
                    await self._filled.wait()
            except TimeoutError:
                yield _BEAT
                continue
            waiting, self._messages = self._messages, []
            if not self._closed:
                self._filled.clear()
            if waiting:
                yield b"".join(waiting)


class NotOwner(Exception):
    """That gateway does not own the model under that epoch: it does not know it yet, or any more."""


class RemoteOwner:
    """The owner, at a gateway that holds `records` of its own clients; `submitter` hears what the owner says of them.
    `run` carries the channel; once that has ended, nothing is sent and nothing is heard any more.

    `channel` is larger than that of any that this gateway has opened before, so that the owner knows which is the last.
    """

    def __init__(self, ownership: Ownership, channel: int, records: Records, submitter: Submitter) -> None:
        self.epoch = ownership.epoch
        self._channel = channel
        self._ownership = ownership
        self._records = records
        self._submitter = submitter
        self._outbox = MessageOutbox()

    async def run(self, session: aiohttp.ClientSession, gateway_id: str, opened: Callable[[], None]) -> None:
        """Opens the channel, calls `opened`, and carries it until it breaks. Raises NotOwner, TimeoutError (silence),
        aiohttp.ClientError, WireError."""
        query = {
            "model": self._ownership.model,
            "gateway": gateway_id,
            "epoch": str(self.epoch),
            "channel": str(self._channel),
        }
        reader = messages.MessageReader()
        try:
            async with asyncio.timeout(messages.UNRESPONSIVE_AFTER_S):
                response = await session.post(
                    self._ownership.url + messages.LANES_PATH, params=query, data=self._outbox.pieces()
                )
            try:
                if response.status != 200:
                    raise NotOwner(f"{self._ownership.gateway_id} answered {response.status}")
                opened()
                while piece := await self._piece(response):
                    for message in reader.feed(piece):
                        self.take(message)
            finally:
                response.close()
        finally:
            self._outbox.close()

    async def _piece(self, response: aiohttp.ClientResponse) -> bytes:
        async with asyncio.timeout(messages.UNRESPONSIVE_AFTER_S):
            return await response.content.readany()

    def submit(
        self, submitter: Submitter, request: Request, admitted: bool = False, hop: HopFacts | None = None
    ) -> None:
        self._records.begin(request.request_id, request.attempts, RequestState.WAITING, submitter)
        self._outbox.put(messages.Submit(request, admitted, time.monotonic(), hop))

    def cancel(self, request_id: str) -> None:
        self._outbox.put(messages.Cancel(request_id))

    def hold(self, submitter: Submitter, attempt_id: str, replica_id: str = "") -> None:
        self._outbox.put(messages.Hold(attempt_id, replica_id))

    def first_token(self, attempt_id: str, ago_s: float = 0.0) -> None:
        record = self._records.of_attempt_id(attempt_id)
        if record is not None and record.lease is not None and not record.answered:
            record.answered = True
            self._outbox.put(messages.FirstToken(attempt_id, ago_s))

    def died(self, attempt_id: str) -> None:
        self._outbox.put(messages.Died(attempt_id))

    def release(self, attempt_id: str, ending: Ending) -> None:
        self._outbox.put(messages.Release(attempt_id, ending))

    def refused(self, submitter: Submitter, lease: Lease, state: ReplicaState | HopRefusal | None) -> None:
        self._records.begin(lease.request.request_id, lease.attempt, RequestState.WAITING, submitter)
        stated = state if isinstance(state, ReplicaState) else None
        refusal = state if isinstance(state, HopRefusal) else None
        self._outbox.put(messages.Refused(lease, stated, time.monotonic(), refusal))

    def peer_finished(self, message: Finished) -> None:
        self._outbox.put(message)

    def take(self, message: messages.Message) -> None:
        """Hears what the owner says. A message may come twice, and late: of a request that is given up by then, the
        owner has been told so, or is now."""
        match message:
            case messages.Admitted(request_id, admission):
                if self._waits(request_id):
                    self._submitter.admitted(request_id, admission)
                elif admission.accepted and self._records.client_of(request_id) is None:
                    self._outbox.put(messages.Cancel(request_id))
            case messages.Placed(placement, url):
                if (lease := self._leased(placement.lease)) is not None:
                    self._submitter.placed(replace(placement, lease=lease), url)
            case messages.Expired(request_id) if self._waits(request_id):
                self._submitter.expired(request_id)
            case messages.Suspected(suspicion, sent_s):
                here = suspicion._replace(since_s=suspicion.since_s + time.monotonic() - sent_s)
                self._submitter.suspected((here,))
            case messages.PlacedAtPeer(peer_lease):
                if (lease := self._leased(peer_lease.lease, RequestState.AWAY)) is not None:
                    self._submitter.handed_over(replace(peer_lease, lease=lease))
            case messages.Recalled(attempt_id):
                self._submitter.recalled(attempt_id)
            case messages.GuestRefused(request_id, refusal) if self._waits(request_id):
                self._submitter.guest_refused(request_id, refusal)
            case _:
                pass

    def _waits(self, request_id: str) -> bool:
        record = self._records.client_of(request_id)
        return record is not None and record.state in QUEUED

    def _leased(self, lease: Lease, state: RequestState = RequestState.RUNNING) -> Lease | None:
        """A request got a lease, which began now. None: it was given up meanwhile, or has it already."""
        record = self._records.client_of(lease.request.request_id)
        if record is None:
            self.release(lease.attempt_id, Ending.CANCELLED)
        elif record.state is RequestState.WAITING and lease.attempt > record.attempt:
            assert record.request is not None
            lease = replace(lease, request=record.request, placed_s=time.monotonic())
            self._records.move(record, state, lease)
            return lease
        return None


class Session:
    """Another gateway, at the owner. `channel` numbers those that it has opened.

    It is closed from the start (`is_open`) where a later one of that gateway came first.
    """

    def __init__(self, owner: LaneOwner, gateway_id: str, channel: int = 0) -> None:
        self.gateway_id = gateway_id
        self._owner = owner
        self._reader = messages.MessageReader()
        self._outbox = MessageOutbox()
        self.is_open = owner.join(self, gateway_id, channel)

    def feed(self, piece: bytes) -> None:
        """Does what the other gateway asks. Raises WireError."""
        for message in self._reader.feed(piece):
            self.take(message)

    def take(self, message: messages.Message) -> None:
        """Does what one message asks; nothing once it is closed."""
        if not self.is_open:
            return
        owner, now = self._owner, time.monotonic()
        match message:
            case messages.Submit(request, admitted, sent_s, hop):
                owner.submit(self, messages.moved(request, now - sent_s), admitted, hop)
            case messages.Cancel(request_id):
                owner.cancel(request_id, self)
            case messages.Hold(attempt_id, replica_id):
                owner.hold(self, attempt_id, replica_id)
            case messages.FirstToken(attempt_id, ago_s):
                owner.first_token(attempt_id, ago_s)
            case messages.Died(attempt_id):
                owner.died(attempt_id)
            case messages.Release(attempt_id, ending):
                owner.release(attempt_id, ending)
            case messages.Refused(lease, state, sent_s, refusal):
                lease = replace(lease, request=messages.moved(lease.request, now - sent_s))
                owner.refused(self, lease, refusal or state)
            case Finished():
                owner.peer_finished(message)
            case _:
                pass

    def pieces(self) -> AsyncIterator[bytes]:
        """What is to be sent, until the session ends."""
        return self._outbox.pieces()

    def end(self) -> None:
        """The channel broke, or is to: what waits is given up here (the other gateway takes it to the next owner)."""
        if self.is_open:
            self.is_open = False
            self._outbox.close()
            self._owner.left(self)

    def admitted(self, request_id: str, admission: Admission) -> None:
        self._outbox.put(messages.Admitted(request_id, admission))

    def placed(self, placement: Placement, url: str) -> None:
        self._outbox.put(messages.Placed(placement, url))

    def expired(self, request_id: str) -> None:
        self._outbox.put(messages.Expired(request_id))

    def suspected(self, reported: tuple[Suspicion, ...]) -> None:
        for one in reported:
            self._outbox.put(messages.Suspected(one, time.monotonic()))

    def handed_over(self, peer_lease: PeerLease) -> None:
        self._outbox.put(messages.PlacedAtPeer(peer_lease))

    def recalled(self, attempt_id: str) -> None:
        self._outbox.put(messages.Recalled(attempt_id))

    def guest_refused(self, request_id: str, refusal: HopRefusal) -> None:
        self._outbox.put(messages.GuestRefused(request_id, refusal))

    def moved(self) -> None:
        self.end()
