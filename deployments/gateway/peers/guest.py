"""The answer to a request that a peer has handed over: the client's side of its flow, as `Connection` is for a client
of this cell. It goes to the request's home in frames (`frames.py`).

Until the scheduler has admitted the request nothing is sent, so that a refusal is an answer of its own: 409, and why. A
home that goes away is a client that leaves. Nothing of the wait is sent but beats: home tells its client.
"""

import asyncio
import json
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

from starlette.types import Receive, Scope, Send

from cluster.spec import ClusterSpec, Tenant, TrafficClass
from deployments.gateway.connection import Connection
from deployments.gateway.entrance import KeyRing
from deployments.gateway.flow import Awaited, RequestFlow
from deployments.gateway.peers.auth import (
    CELL_HEADER,
    HOP_HEADER,
    SIGNATURE_HEADER,
    Call,
    CallRefusal,
    Calls,
    hashed,
)
from deployments.gateway.peers.client import TAKEN
from deployments.gateway.peers.frames import BEAT_S, FrameKind, FrameWriter, UsageFrame
from deployments.http.limits import ClientLimits
from deployments.openai.endpoints import Endpoint
from deployments.openai.errors import ApiError, ErrorCode
from deployments.peering import HopFacts, HopRefusal
from deployments.scheduling import Request
from deployments.telemetry.ledger import Ledger

_USAGE_S = 1.25
"""The engine's account comes within a second, or not at all (`telemetry/journal.py`)."""


class GuestRefusedHere(ApiError):
    """This cell does not take the request. It waits at its home."""

    def __init__(self, refusal: HopRefusal) -> None:
        super().__init__(ErrorCode.HOP_REFUSED, f"the request is not taken: {refusal.value}")
        self.refusal = refusal


class GuestConnection(Connection):
    """One hop that came, with a request of another cell. `guests` counts those that are taken, by model and home."""

    hop: HopFacts

    def __init__(
        self,
        scope: Scope,
        receive: Receive,
        send: Send,
        flow: RequestFlow,
        max_body_bytes: int,
        limits: ClientLimits,
        is_last: Callable[[], bool],
        call: Call,
        hop: HopFacts,
        calls: Calls,
        guests: Counter[tuple[str, str]],
    ) -> None:
        super().__init__(scope, receive, send, flow, max_body_bytes, limits, is_last)
        self.hop = hop
        self._call = call
        self._calls = calls
        self._guests = guests
        self._writer = FrameWriter(calls.signer.frame_key(calls.signer.cell, call.sender, call.nonce))
        self._sending = asyncio.Lock()
        self._beating: asyncio.Task[None] | None = None
        self._telling: asyncio.Task[None] | None = None
        self._closed = asyncio.Event()
        self._taking = self._refused = self._ended = self._is_cut = False
        flow.ledger.watcher = self

    def tenant(self, keys: KeyRing, spec: ClusterSpec) -> Tenant | None:
        """The one that home has found by its client's key."""
        found = next((tenant for tenant in spec.tenants if tenant.name == self.hop.tenant), None)
        if found is None and (spec.tenants or self.hop.tenant):
            raise GuestRefusedHere(HopRefusal.SPEC)
        return found

    def traffic_class(self, spec: ClusterSpec, tenant: Tenant | None, service_tier: str) -> TrafficClass:
        found = next((one for one in spec.classes if one.name == self.hop.traffic_class), None)
        if found is None:
            raise GuestRefusedHere(HopRefusal.SPEC)
        return found

    def submitted(self, request: Request, model: str) -> Request:
        """With what is left of its deadlines, by this cell's clock."""
        if model != self.hop.model:
            raise GuestRefusedHere(HopRefusal.SPEC)
        return self.hop.guest(request, time.monotonic())

    async def read_body(self) -> bytes:
        """The whole body, if it is the one that was signed."""
        body = await super().read_body()
        if await hashed(body) != self._call.content:
            self._calls.refuse(self._call.sender, CallRefusal.WRONG_CONTENT)
            raise ApiError(ErrorCode.UNAUTHORIZED, "the body is not the one that was signed")
        return body

    async def taken(self) -> None:
        """The request is admitted: from now on home may give up its place there."""
        signer, self._taking = self._calls.signer, True
        self._guests[self._flow.ledger.model, self._call.sender] += 1
        self._flow.wait_for(Awaited.CLIENT, time.monotonic())
        headers = [
            (b"content-type", b"application/octet-stream"),
            (HOP_HEADER.encode(), TAKEN.encode()),
            (CELL_HEADER.encode(), signer.cell.encode()),
            (SIGNATURE_HEADER.encode(), signer.answer(self._call, 200, TAKEN.encode()).encode()),
        ]
        if self._is_last():
            headers.append((b"connection", b"close"))
        await self._send({"type": "http.response.start", "status": 200, "headers": headers})
        await self._put(self._writer.encode(FrameKind.BEAT))  # uvicorn sends the head at once, a proxy perhaps not
        self._beating = asyncio.create_task(self._beat())

    def write(self, piece: bytes) -> Awaitable[None]:
        """Sends whole events of a stream, or a piece of an answer that is none."""
        self._streaming = True
        self._flow.ledger.bytes_out += len(piece)
        return self._put_frame(FrameKind.DATA, piece)

    async def finish(self, last: bytes = b"") -> None:
        """The answer is whole."""
        if last:
            await self.write(last)
        await self._put_json(FrameKind.END, {"error": self._flow.ledger.error})
        self._ended = True

    async def fail(self, error: ApiError, endpoint: Endpoint, patience_s: float) -> None:
        """Tells home of an error: that the request is not taken, or what ends its answer."""
        try:
            async with asyncio.timeout(patience_s):
                if self._beating is not None:
                    content = {"code": error.error.code, "message": error.message, "param": error.param}
                    await self._put_json(FrameKind.ERROR, {**content, "headers": error.headers})
                elif self._taking:  # home has not read that it is taken
                    self.cut()
                else:
                    await self._refuse(error)
        except TimeoutError:
            self.cut()

    def cut(self) -> None:
        self._is_cut = True
        super().cut()

    async def end(self, ledger: Ledger) -> None:
        """Sends what the engine counted, once it is known, and ends the exchange."""
        try:
            if self._ended and not self._is_cut:
                async with asyncio.timeout(_USAGE_S):
                    await self._closed.wait()
                if (done := ledger.finished) is not None:
                    counted = {name: getattr(done, name) for name in UsageFrame.model_fields}
                    await self._put_json(FrameKind.USAGE, counted)
        except TimeoutError:
            pass
        finally:
            if self._beating is not None:
                self._beating.cancel()
        if self._beating is not None and not self._is_cut:
            try:
                async with asyncio.timeout(_USAGE_S), self._sending:
                    await self._send({"type": "http.response.body", "body": b"", "more_body": False})
            except TimeoutError:  # home does not read
                self.cut()

    # What the ledger hears (`telemetry.ledger.LedgerWatcher`).
    def first_token(self) -> None:
        """The replica's word of the first token, of which no byte tells where the answer is not streamed."""
        if not self._flow.ledger.stream and self._beating is not None:
            self._telling = asyncio.create_task(self._put_frame(FrameKind.FIRST_TOKEN, b""))

    def closed(self) -> None:
        """The ledger is complete."""
        self._closed.set()

    async def _start(self, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        self._started = True
        self._flow.ledger.status = status
        pairs = [[name.decode("latin-1"), value.decode("latin-1")] for name, value in headers]
        await self._put_json(FrameKind.HEAD, {"status": status, "headers": pairs})

    async def _refuse(self, error: ApiError) -> None:
        if self._refused:
            return
        self._refused = True
        status = 401 if error.error is ErrorCode.UNAUTHORIZED else 409
        refusal = error.refusal if isinstance(error, GuestRefusedHere) else _refusal_of(error)
        body = json.dumps({"refusal": refusal.value}).encode()
        signer = self._calls.signer
        self._flow.ledger.status = status
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", str(len(body)).encode()),
            (CELL_HEADER.encode(), signer.cell.encode()),
            (SIGNATURE_HEADER.encode(), signer.answer(self._call, status, body).encode()),
        ]
        await self._send({"type": "http.response.start", "status": status, "headers": headers})
        await self._send({"type": "http.response.body", "body": body, "more_body": False})

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(BEAT_S)
            if not self._sending.locked():
                await self._put_frame(FrameKind.BEAT, b"")

    async def _put_json(self, kind: FrameKind, content: dict[str, Any]) -> None:
        async with self._sending:
            await self._put(self._writer.encode_json(kind, content))

    async def _put_frame(self, kind: FrameKind, content: bytes) -> None:
        async with self._sending:
            await self._put(self._writer.encode(kind, content))

    async def _put(self, frame: bytes) -> None:
        await self._send({"type": "http.response.body", "body": frame, "more_body": True})


def _refusal_of(error: ApiError) -> HopRefusal:
    """What home hears of an error before the request was taken: the scheduler has rejected it, this cell is stopping,
    or reads the request otherwise."""
    if error.error is ErrorCode.DRAINING:
        return HopRefusal.LOADED
    return HopRefusal.REJECTED if error.error.status >= 429 else HopRefusal.SPEC
