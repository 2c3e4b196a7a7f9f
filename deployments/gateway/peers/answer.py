"""The answer of a peer that has a request: its frames become the client's answer.

A stream goes to the client as it comes, at the ends of events. Another answer goes when it is whole. The head is home's
own, but for the content type and where the request was placed.
"""

import asyncio
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from functools import partial

from deployments.gateway.connection import Connection, answer_headers
from deployments.gateway.flow import Awaited, RequestFlow
from deployments.gateway.peers.client import PeerFailed, PeerStream
from deployments.gateway.peers.frames import (
    BEAT_S,
    Content,
    EndFrame,
    ErrorFrame,
    Frame,
    FrameKind,
    HeadFrame,
    UsageFrame,
)
from deployments.openai.errors import ApiError, ErrorCode
from deployments.ownership.gateway_hops import GatewayHops
from deployments.peering import HopFacts
from deployments.protocol import SIMULATED_HEADER

UNRESPONSIVE_AFTER_S = 5 * BEAT_S
"""A peer that has taken a request, and says nothing for so long before its answer begins, is given up."""
MAX_WHOLE = 256 << 20
"""Bytes of an answer that is not streamed."""
_USAGE_S = 2.0
_KEPT_HEADERS = (SIMULATED_HEADER, "x-raylane-placement")
"""Of the peer's answer, beside its content type; the rest is home's own."""
_ERROR_HEADERS = ("retry-after", "x-raylane-lane")
"""...and of an error."""
_VALUE = re.compile(r"[\x20-\x7e]{1,1024}")
"""Of these headers: a peer puts no line of its own into an answer to a client."""
_CODES = {one.code: one for one in ErrorCode}

UsageReader = Callable[[], Awaitable[UsageFrame | None]]
"""Reads what the engine counted; None where nothing comes of it."""


class PeerAnswer:
    """Of one request. `answering`: its answer has begun, so that it goes home no more."""

    def __init__(self, hops: GatewayHops, facts: HopFacts, flow: RequestFlow, client: Connection) -> None:
        self.answering = False
        self._hops = hops
        self._facts = facts
        self._flow = flow
        self._ledger = flow.ledger
        self._client = client
        self._head: tuple[int, Mapping[str, str]] | None = None
        self._whole = bytearray()
        self._received = self._sent = 0.0

    async def run(self, stream: PeerStream, ended: Callable[[UsageReader], None]) -> None:
        """To the end of the client's answer. Raises PeerFailed where the peer is lost, ApiError where its answer is an
        error. `ended` gets what reads the usage, once the peer's answer is whole."""
        frames = stream.frames()
        while True:
            try:
                async with asyncio.timeout(None if self.answering else UNRESPONSIVE_AFTER_S):
                    batch = await anext(frames, None)
            except TimeoutError:
                raise PeerFailed(f"nothing came for {UNRESPONSIVE_AFTER_S:g} s") from None
            if batch is None:
                raise PeerFailed("the answer ended early")
            for number, frame in enumerate(batch, 1):
                if frame.kind is FrameKind.END:
                    self._check(frame)
                    ended(partial(_usage, frames, batch[number:]))
                    await self._end()
                    return
                await self._take(frame)

    def left(self) -> None:
        """The hop is over: the time up to now is accounted for, where the answer broke off."""
        ledger, now = self._ledger, time.monotonic()
        if ledger.placed_s is not None and ledger.last_byte_s is None:
            ledger.last_byte_s = now
            ledger.engine_wait_s += now - self._sent if self._sent else 0.0

    async def _take(self, frame: Frame) -> None:
        match frame.kind:
            case FrameKind.HEAD if self._head is None:
                self._head = _head_of(frame)
            case FrameKind.HEAD:
                raise PeerFailed("a second head")
            case FrameKind.DATA if self._is_stream:
                await self._write(frame.content)
            case FrameKind.DATA:
                self._whole += frame.content
                if len(self._whole) > MAX_WHOLE:
                    raise PeerFailed(f"an answer of over {MAX_WHOLE} bytes")
            case FrameKind.FIRST_TOKEN:
                self._ledger.first_token_s = time.monotonic()
                self._begin()
            case FrameKind.ERROR:
                self._raise(frame)
            case _:
                pass
        if self.answering:  # until the next frame, of whatever kind
            self._flow.wait_for(Awaited.BETWEEN_BYTES, time.monotonic())

    @property
    def _is_stream(self) -> bool:
        if self._head is None:
            raise PeerFailed("a body before its head")
        return self._head[1].get("content-type", "").startswith("text/event-stream")

    async def _write(self, events: bytes) -> None:
        ledger, clock = self._ledger, time.monotonic
        previous, self._received = self._received, clock()
        if previous:
            ledger.itl.append(self._received - previous)
            ledger.engine_wait_s += self._received - self._sent
        else:
            self._begin()
            ledger.first_byte_s = self._received
            await self._start()
        self._flow.wait_for(Awaited.CLIENT, self._received)
        try:
            await self._client.write(events)
        finally:
            self._sent = clock()
            ledger.client_stall_s += self._sent - self._received

    def _begin(self) -> None:
        """Raises PeerFailed where the hop is withdrawn."""
        if not self.answering:
            self.answering = self._hops.first_byte(self._facts.request_id, self._facts.number)
            if not self.answering:
                raise PeerFailed("the hop was withdrawn")
            self._client.release_body()

    async def _start(self, *more: tuple[bytes, bytes]) -> None:
        assert self._head is not None
        status, given = self._head
        kept = [(name.encode(), given[name].encode("latin-1")) for name in _KEPT_HEADERS if name in given]
        kind = (b"content-type", given.get("content-type", "application/json").encode("latin-1"))
        await self._client.start(status, [kind, *more, *kept, *answer_headers(self._ledger)])

    def _check(self, end: Frame) -> None:
        """The peer's answer is whole. Raises PeerFailed."""
        if self._is_stream and not self._received:
            raise PeerFailed("a stream without a byte")
        error = _read(end, EndFrame).error
        ledger, now = self._ledger, time.monotonic()
        self._begin()
        ledger.error = error if error is None or error in _CODES else ErrorCode.ENGINE_ERROR.code
        ledger.first_byte_s, ledger.last_byte_s = ledger.first_byte_s or now, now
        if self._is_stream:
            ledger.engine_wait_s += now - self._sent
        self._hops.finished(self._facts.request_id, self._facts.number)

    async def _end(self) -> None:
        whole, began_s = bytes(self._whole), time.monotonic()
        self._flow.wait_for(Awaited.CLIENT, began_s)
        try:
            if self._is_stream:
                await self._client.finish()
            elif self._client.commented:
                raise ApiError(ErrorCode.ENGINE_ERROR, "the engine did not stream its answer")
            else:
                await self._start((b"content-length", str(len(whole)).encode()))
                await self._client.finish(whole)
        finally:
            self._ledger.last_stall_s = time.monotonic() - (self._ledger.last_byte_s or began_s)

    def _raise(self, frame: Frame) -> None:
        """The peer's answer is an error. One that says that nothing was done sends the request home again."""
        error = _read(frame, ErrorFrame)
        code = _CODES.get(error.code, ErrorCode.ENGINE_ERROR)
        if code.status == 503 and not self.answering:
            raise PeerFailed(f"the peer answered {code.code}")
        headers = {name: error.headers[name] for name in _ERROR_HEADERS if name in error.headers}
        raise ApiError(code, error.message, error.param, {name: one for name, one in headers.items() if _is_value(one)})


def _is_value(text: str) -> bool:
    return _VALUE.fullmatch(text) is not None


def _read(frame: Frame, form: type[Content]) -> Content:
    try:
        return frame.read(form)
    except ValueError as error:
        raise PeerFailed(str(error)) from None


def _head_of(frame: Frame) -> tuple[int, Mapping[str, str]]:
    head = _read(frame, HeadFrame)
    headers = {name: value for name, value in head.headers if name in ("content-type", *_KEPT_HEADERS)}
    if not all(map(_is_value, headers.values())):
        raise PeerFailed("no HEAD frame")
    return head.status, headers


async def _usage(frames: AsyncIterator[list[Frame]], rest: list[Frame] | None) -> UsageFrame | None:
    """What the engine counted, of the last frames of an answer; None where nothing came of it."""
    found = None
    try:
        async with asyncio.timeout(_USAGE_S):
            while rest is not None:
                for frame in rest:
                    found = frame.read(UsageFrame) if frame.kind is FrameKind.USAGE else found
                rest = await anext(frames, None)
    except (PeerFailed, TimeoutError, ValueError):
        return None
    return found
