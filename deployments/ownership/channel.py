"""A gateway's end of the channel to the owner of a model (`messages.py`). The other end is in `session.py`."""

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable

import aiohttp

from deployments.cell.owners import Ownership
from deployments.ownership.messages import (
    BEAT_S,
    LANES_PATH,
    UNRESPONSIVE_AFTER_S,
    Admitted,
    Beat,
    Cancel,
    Died,
    Expired,
    FirstToken,
    GuestRefused,
    Hold,
    Message,
    Placed,
    PlacedAtPeer,
    Recalled,
    Refused,
    Release,
    Submit,
    Suspected,
    decode,
    encode,
    waiting_of,
)
from deployments.ownership.roles import Submitter
from deployments.peering import HopFacts, HopRefusal
from deployments.protocol import ReplicaState
from deployments.scheduling import Ending, Lease, Request, Suspicion

_MAX_LINES = 100_000
"""Beyond that the other end does not read: the outbox closes itself."""


class MessageOutbox:
    """Lines that are to be sent, taken out all at once by whoever writes. Never blocks who puts."""

    def __init__(self) -> None:
        self._lines: list[bytes] = []
        self._filled = asyncio.Event()
        self._closed = False

    def put(self, line: bytes) -> None:
        """Adds a line; nothing once it is closed."""
        if len(self._lines) >= _MAX_LINES:
            self.close()
        if not self._closed:
            self._lines.append(line)
            self._filled.set()

    def close(self) -> None:
        """Ends `pieces`, after what is in."""
        self._closed = True
        self._filled.set()

    async def pieces(self, every_s: float, idle: bytes) -> AsyncIterator[bytes]:
        """All that is in, as soon as something is; `idle` when nothing was for `every_s`."""
        while not self._closed or self._lines:
            try:
                async with asyncio.timeout(every_s):
                    await self._filled.wait()
            except TimeoutError:
                yield idle
                continue
            lines, self._lines = self._lines, []
            if not self._closed:
                self._filled.clear()
            if lines:
                yield b"".join(lines)


class NotOwner(Exception):
    """That gateway does not own the model under that epoch: it does not know it yet, or any more."""


class RemoteOwner:
    """One channel to the owner. `run` carries it; once that has ended, nothing is sent and no submitter is called any
    more.

    `channel` is larger than that of any that this gateway has opened before, so that the owner knows which is the last.
    `suspected` hears of queries of death (`roles.Submitter.suspected`).
    """

    def __init__(
        self,
        ownership: Ownership,
        channel: int = 0,
        suspected: Callable[[tuple[Suspicion, ...]], None] = lambda reported: None,
    ) -> None:
        self.epoch = ownership.epoch
        self._channel = channel
        self._suspected = suspected
        self._ownership = ownership
        self._outbox = MessageOutbox()
        self._requests: dict[str, tuple[Submitter, Request]] = {}
        self._leased: dict[str, Submitter] = {}
        """Who holds each lease, by its attempt id."""
        self._ended = False

    async def run(self, session: aiohttp.ClientSession, gateway_id: str, opened: Callable[[], None]) -> None:
        """Opens the channel, calls `opened`, and carries it until it breaks. Raises NotOwner, TimeoutError (silence),
        aiohttp.ClientError."""
        query = {
            "model": self._ownership.model,
            "gateway": gateway_id,
            "epoch": str(self.epoch),
            "channel": str(self._channel),
        }
        try:
            async with asyncio.timeout(UNRESPONSIVE_AFTER_S):
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

    def submit(
        self, submitter: Submitter, request: Request, admitted: bool = False, hop: HopFacts | None = None
    ) -> None:
        self._requests[request.request_id] = submitter, request
        self._send(Submit(waiting_of(request, time.monotonic()), admitted, hop))

    def cancel(self, request_id: str) -> None:
        if self._requests.pop(request_id, None) is not None:
            self._send(Cancel(request_id))

    def hold(self, submitter: Submitter, attempt_id: str) -> None:
        self._send(Hold(attempt_id))

    def first_token(self, attempt_id: str, ago_s: float = 0.0) -> None:
        self._send(FirstToken(attempt_id, ago_s))

    def died(self, attempt_id: str) -> None:
        self._send(Died(attempt_id))

    def release(self, attempt_id: str, ending: Ending) -> None:
        self._leased.pop(attempt_id, None)
        self._send(Release(attempt_id, ending))

    def refused(self, submitter: Submitter, lease: Lease, state: ReplicaState | HopRefusal | None) -> None:
        self._requests[lease.request.request_id] = submitter, lease.request
        self._leased.pop(lease.attempt_id, None)
        waiting = waiting_of(lease.request, time.monotonic())
        refusal = state if isinstance(state, HopRefusal) else None
        stated = state.value if isinstance(state, ReplicaState) else None
        self._send(Refused(waiting, lease.replica_id, lease.attempt, stated, refusal))

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
            case Placed(request_id=request_id, attempt_id=attempt_id):
                held = self._lease(request_id, attempt_id)
                if held is not None:
                    held[0].placed(message.placement(held[1], time.monotonic()), message.url)
            case PlacedAtPeer(request_id=request_id):
                held = self._lease(request_id, f"{request_id}-{message.attempt}")
                if held is not None:
                    held[0].handed_over(message.lease(held[1], time.monotonic()))
            case Expired(request_id=request_id):
                held = self._requests.pop(request_id, None)
                if held is not None:
                    held[0].expired(request_id)
            case Suspected():
                self._suspected((message.suspicion(time.monotonic()),))
            case Recalled(attempt_id):
                if attempt_id in self._leased:
                    self._leased[attempt_id].recalled(attempt_id)
            case GuestRefused(request_id, refusal):
                held = self._requests.pop(request_id, None)
                if held is not None:
                    held[0].guest_refused(request_id, refusal)
            case _:
                pass

    def _lease(self, request_id: str, attempt_id: str) -> tuple[Submitter, Request] | None:
        """Who holds a request that has a lease now; None where it was given up while this was under way."""
        held = self._requests.pop(request_id, None)
        if held is not None:
            self._leased[attempt_id] = held[0]
        elif attempt_id not in self._leased:
            self._send(Release(attempt_id, Ending.CANCELLED))
        return held


async def _lines(response: aiohttp.ClientResponse) -> AsyncGenerator[bytes]:
    """The lines of an answer. Raises TimeoutError when the other end is unresponsive."""
    while True:
        async with asyncio.timeout(UNRESPONSIVE_AFTER_S):
            line = await response.content.readline()
        if not line:
            return
        yield line
