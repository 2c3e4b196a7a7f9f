"""The owner of a model when it is another gateway: this end of the channel (`messages.py`). `session.py` is the other end."""

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable

import aiohttp

from deployments.ownership.messages import (
    BEAT_S,
    LANES_PATH,
    SILENT_AFTER_S,
    Admitted,
    Beat,
    Cancel,
    Died,
    Expired,
    FirstToken,
    Hold,
    Message,
    Placed,
    Refused,
    Release,
    Submit,
    Suspected,
    decode,
    encode,
    waiting_of,
)
from deployments.ownership.outbox import Outbox
from deployments.ownership.owners import Ownership
from deployments.ownership.roles import Holder
from deployments.protocol import ReplicaState
from deployments.scheduling import Ending, Lease, Request, Suspicion


class NotOwner(Exception):
    """That gateway does not own the model under that epoch: it does not know it yet, or any more."""


class RemoteOwner:
    """One channel to the owner. `run` carries it; once that has ended, nothing is sent and nobody is told anything any more.

    `channel` is larger than that of any that this gateway has opened before, so that the owner knows which is the last. `suspected` hears
    of queries of death (`roles.Holder.suspected`).
    """

    def __init__(self, ownership: Ownership, channel: int = 0, suspected: Callable[[tuple[Suspicion, ...]], None] = lambda told: None) -> None:
        self.epoch = ownership.epoch
        self._channel = channel
        self._suspected = suspected
        self._ownership = ownership
        self._outbox = Outbox()
        self._requests: dict[str, tuple[Holder, Request]] = {}
        self._leased: set[str] = set()
        self._ended = False

    async def run(self, session: aiohttp.ClientSession, gateway_id: str, opened: Callable[[], None]) -> None:
        """Opens the channel, calls `opened`, and carries it until it breaks. Raises NotOwner, TimeoutError (silence), aiohttp.ClientError."""
        query = {"model": self._ownership.model, "gateway": gateway_id, "epoch": str(self.epoch), "channel": str(self._channel)}
        try:
            async with asyncio.timeout(SILENT_AFTER_S):
                response = await session.post(self._ownership.url + LANES_PATH, params=query, data=self._body())
            try:
                if response.status != 200:
                    raise NotOwner(f"{self._ownership.gateway_id} answered {response.status}")
                opened()
                await self._listen(response)
            finally:
                response.close()
        finally:
            self._ended = True
            self._outbox.close()

    def submit(self, holder: Holder, request: Request, admitted: bool = False) -> None:
        """See `roles.Owner`."""
        self._requests[request.request_id] = holder, request
        self._send(Submit(waiting_of(request, time.monotonic()), admitted))

    def cancel(self, request_id: str) -> None:
        """See `roles.Owner`."""
        if self._requests.pop(request_id, None) is not None:
            self._send(Cancel(request_id))

    def hold(self, holder: Holder, engine_id: str) -> None:
        """See `roles.Owner`."""
        self._send(Hold(engine_id))

    def first_token(self, engine_id: str) -> None:
        """See `roles.Owner`."""
        self._send(FirstToken(engine_id))

    def died(self, engine_id: str) -> None:
        """See `roles.Owner`."""
        self._send(Died(engine_id))

    def release(self, engine_id: str, ending: Ending) -> None:
        """See `roles.Owner`."""
        self._leased.discard(engine_id)
        self._send(Release(engine_id, ending))

    def refused(self, holder: Holder, lease: Lease, state: ReplicaState | None) -> None:
        """See `roles.Owner`."""
        self._requests[lease.request.request_id] = holder, lease.request
        self._leased.discard(lease.engine_id)
        waiting = waiting_of(lease.request, time.monotonic())
        self._send(Refused(waiting, lease.replica_id, lease.attempt, None if state is None else state.value))

    def _send(self, message: Message) -> None:
        if not self._ended:
            self._outbox.put(encode(message))

    async def _body(self) -> AsyncIterator[bytes]:
        yield encode(Beat())  # aiohttp sends the head with the first piece
        async for lines in self._outbox.pieces(BEAT_S, encode(Beat())):
            yield lines

    async def _listen(self, response: aiohttp.ClientResponse) -> None:
        async for line in _lines(response):
            self.take(decode(line))

    def take(self, message: Message) -> None:
        """Hears what the owner says."""
        match message:
            case Admitted(request_id=request_id):
                held = self._requests.get(request_id)
                if held is not None:
                    held[0].admitted(request_id, message.admission)
                    if not message.admission.accepted:
                        self._requests.pop(request_id, None)
                elif message.admission.accepted:
                    self._send(Cancel(request_id))
            case Placed(request_id=request_id, engine_id=engine_id):
                held = self._requests.pop(request_id, None)
                if held is None:
                    if engine_id not in self._leased:  # it was given up while this was under way
                        self._send(Release(engine_id, Ending.CANCELLED))
                else:
                    self._leased.add(engine_id)
                    held[0].placed(message.placement(held[1], time.monotonic()), message.url)
            case Expired(request_id=request_id):
                held = self._requests.pop(request_id, None)
                if held is not None:
                    held[0].expired(request_id)
            case Suspected():
                self._suspected((message.suspicion(time.monotonic()),))
            case _:
                pass


async def _lines(response: aiohttp.ClientResponse) -> AsyncGenerator[bytes]:
    """The lines of an answer. Raises TimeoutError when the other end is silent."""
    while True:
        async with asyncio.timeout(SILENT_AFTER_S):
            line = await response.content.readline()
        if not line:
            return
        yield line
