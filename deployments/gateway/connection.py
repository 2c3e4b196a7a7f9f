"""The client's side of a flow: reads the body, and in it what routing needs; sends the answer; notices when the client
is gone. Thin over ASGI's receive and send.

A small body is parsed at once, a large one in a thread, so that it never holds up the streams of others.
"""

import asyncio
import hashlib
import hmac
import socket
import struct
import time
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from starlette.types import Receive, Scope, Send

from cluster.spec import ClusterSpec, RequestLimits, Tenant, TrafficClass
from deployments.gateway.entrance import CLASS_HEADER, EXTRA_HEADERS, Headers, KeyRing, class_of
from deployments.gateway.flow import Aborted, Awaited, EndCause, RequestFlow
from deployments.http.limits import ClientLimits
from deployments.http.protocol import body_due_s
from deployments.openai.clamp import Clamp
from deployments.openai.endpoints import BodyKind, Endpoint
from deployments.openai.errors import ApiError, Dialect, ErrorCode
from deployments.openai.fields import with_member
from deployments.openai.inquiry import UNSALTED, Inquiry, read_inquiry
from deployments.openai.prefix import SaltOf
from deployments.peering import HopFacts
from deployments.scheduling import Request
from deployments.telemetry.ledger import Ledger

_RESET_ON_CLOSE = struct.pack("ii", 1, 0)
"""SO_LINGER's value: on, for no time."""
_TCP_INFO_RTT = 68
"""Where `tcpi_rtt` begins in Linux's `struct tcp_info`, four bytes of microseconds."""
_PIECE_BYTES = 64 << 10
"""A long answer is written in pieces of this size, so that a slow client has `client_stall_s` for each of them and not
for the whole."""


def answer_headers(ledger: Ledger) -> list[tuple[bytes, bytes]]:
    """The headers that every answer of the gateway carries: the request's id, its timing so far, who held it, where it
    was placed and why, and in which region."""
    headers = [
        (b"x-request-id", ledger.request_id.encode()),
        (b"server-timing", ledger.server_timing().encode()),
        (b"x-raylane-gateway", ledger.gateway.encode()),
    ]
    headers += degraded_headers(ledger)
    if ledger.lane is not None:
        headers.append((b"x-raylane-lane", ledger.lane.encode()))
    if ledger.replica_id is not None:
        headers.append((b"x-raylane-placement", f"{ledger.replica_id}; reason={ledger.pick}".encode()))
    if ledger.resubmitted is not None:
        headers.append((b"x-raylane-resubmitted", ledger.resubmitted.encode()))
    if ledger.region:
        headers.append((b"x-raylane-region", ledger.region.encode()))
    return headers


def waiting_headers(ledger: Ledger) -> list[tuple[bytes, bytes]]:
    """Those of an answer whose head goes out while its request waits: what only the placement or the engine's answer
    tells is left out."""
    headers = [
        (b"content-type", b"text/event-stream; charset=utf-8"),
        (b"x-request-id", ledger.request_id.encode()),
        (b"x-raylane-gateway", ledger.gateway.encode()),
        *degraded_headers(ledger),
    ]
    if ledger.lane is not None:
        headers.append((b"x-raylane-lane", ledger.lane.encode()))
    return headers


def degraded_headers(ledger: Ledger) -> list[tuple[bytes, bytes]]:
    """What its client gets less of than it asked for, and why."""
    return [(b"x-raylane-degraded", one.said.encode()) for one in ledger.degraded]


def cut(send: Send) -> None:
    """Drops the connection of an exchange at once, with what was not sent: the only way to be rid of a client that does
    not read.

    uvicorn has no call for that, so this reaches into its exchange. A reset, since after a mere close the kernel would
    keep the unread bytes for minutes, and a client that comes back would see an end like any other.
    """
    exchange: Any = getattr(send, "__self__", None)
    if exchange is None or exchange.disconnected:
        return
    exchange.disconnected = True  # or uvicorn would complain that the answer is not complete
    connection = exchange.transport.get_extra_info("socket")
    if connection is not None:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
    exchange.transport.abort()


class Recording:
    """An answer as its client gets it. `body` is None once there is no room for it; `reserve` is asked for room for an
    answer of so many bytes to have so many more (fewer than 0: gives back)."""

    def __init__(self, reserve: Callable[[int, int], bool]) -> None:
        self.head: Headers = []
        self.body: bytearray | None = bytearray()
        self._reserve = reserve

    def add(self, piece: bytes) -> None:
        if self.body is None:
            return
        if self._reserve(len(self.body), len(piece)):
            self.body += piece
        else:
            self.give_up()

    def give_up(self) -> None:
        self._reserve(0, -len(self.body or b""))
        self.body = None


class Connection:
    """One HTTP exchange with a client. `is_last` says, when the answer begins, whether the connection is to end with
    it."""

    hop: HopFacts | None = None
    """By which the request came from a peer cell (`peers/guest.py`)."""

    def __init__(
        self,
        scope: Scope,
        receive: Receive,
        send: Send,
        flow: RequestFlow,
        endpoint: Endpoint,
        max_body_bytes: int,
        limits: ClientLimits,
        is_last: Callable[[], bool],
    ) -> None:
        self.flow = flow
        self.endpoint = endpoint
        self.headers: dict[bytes, bytes] = dict(scope["headers"])
        self.method: str = scope["method"]
        self._extra_headers: Sequence[tuple[bytes, bytes]] = scope.get(EXTRA_HEADERS, ())
        self.answered = False
        """Whether any of the answer was sent: comments on the wait are none of it."""
        self.commented = False
        """Whether comments on the wait were sent, so that the answer can only be a stream any more."""
        self._commenting: asyncio.Task[None] | None = None
        self._started = False
        self._streaming = False
        self._receive = receive
        self._send = send
        self._max_body_bytes = max_body_bytes
        self._limits = limits
        self._is_last = is_last
        self._watcher: asyncio.Task[None] | None = None
        self.recording: Recording | None = None
        """Hears of the answer, where it may be kept (`cache.py`)."""
        self.clamp: Clamp | None = None
        """How its answer is made shorter, where a ladder may do that."""
        self.body = self.given_body = b""
        """For the replica, and for a peer cell as the client sent it, until the answer has begun."""

    def tenant(self, keys: KeyRing, spec: ClusterSpec) -> Tenant | None:
        """Whose request it is. Raises ApiError."""
        return keys.tenant_of(self.headers.get(b"authorization", b""), self.headers.get(b"x-api-key", b""))

    def traffic_class(self, spec: ClusterSpec, tenant: Tenant | None, service_tier: str) -> TrafficClass:
        """The class that it claims. Raises ApiError."""
        return class_of(spec, self.headers.get(CLASS_HEADER, b""), tenant, service_tier)

    def admitted(self) -> None:
        """The request was admitted."""

    def submitted(self, request: Request, model: str) -> Request:
        """The request as it is submitted to the model's owner. Raises ApiError."""
        return request

    async def read_body(self) -> bytes:
        """The whole body. Raises ApiError when it is over the limit, Aborted when the client leaves."""
        announced = self.headers.get(b"content-length", b"")
        if announced.isdigit() and int(announced) > self._max_body_bytes:
            raise self._too_large(int(announced))
        pieces: list[bytes] = []
        size, began_s = 0, time.monotonic()
        while True:
            self.flow.wait_for(Awaited.UPLOAD, time.monotonic(), began_s + body_due_s(self._limits, size))
            message = await self._receive()
            if message["type"] == "http.disconnect":
                raise Aborted(EndCause.CLIENT_GONE, None)
            pieces.append(message.get("body", b""))
            size += len(pieces[-1])
            if size > self._max_body_bytes:
                raise self._too_large(size)
            if not message.get("more_body", False):
                return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def set_member(self, name: str, value: object) -> None:
        """The body asks for that from now on, at a replica and at a peer cell."""
        self.body = with_member(self.body, name, value)
        if self.given_body:
            self.given_body = with_member(self.given_body, name, value)

    def carry(self, name: bytes, value: str) -> None:
        """Its answer, whatever it is, has this header."""
        self._extra_headers = (*self._extra_headers, (name, value.encode()))

    def release_body(self) -> None:
        """The answer has begun: nobody needs the body again, and it may be as large as a hundred thousand tokens."""
        self.body = self.given_body = b""

    def watch(self) -> None:
        """From now on a client that leaves aborts the flow."""
        self._watcher = asyncio.create_task(self._watch())

    def unwatch(self) -> None:
        """The answer is complete: what the client does now is its own affair."""
        if self._watcher is not None:
            self._watcher.cancel()
        if self._commenting is not None:
            self._commenting.cancel()

    def comment(self, comment: bytes, marks: Sequence[tuple[bytes, bytes]]) -> asyncio.Task[None] | None:
        """Begins to send a comment on the wait; the first goes out with the head of a stream, of which `marks` are a
        part. None once the answer has begun."""
        if self.answered:
            return None
        self.commented = True
        self._commenting = asyncio.create_task(self._comment(comment, marks))
        return self._commenting

    async def start(self, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        """Sends the status line and headers, unless they went out with a comment."""
        await self._end_comments()
        if not self._started:
            await self._start(status, headers)

    async def _start(self, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        self._started = True
        self.flow.ledger.status = status
        if self.recording is not None:
            self.recording.head = headers
        headers = [*headers, *self._extra_headers]
        if self._is_last():
            headers.append((b"connection", b"close"))
        await self._send({"type": "http.response.start", "status": status, "headers": headers})

    def write(self, piece: bytes) -> Awaitable[None]:
        """Sends a piece of the body, when awaited; waits while the client does not read."""
        self._streaming = True
        self.flow.ledger.bytes_out += len(piece)
        if self.recording is not None and self.answered:
            self.recording.add(piece)
        return self._send({"type": "http.response.body", "body": piece, "more_body": True})

    def pass_on(self, piece: bytes) -> bool:
        """Writes a piece of a stream as uvicorn would, but at once; False where that is not possible: the client has
        not read all before it, or knows no chunks."""
        to: Any = getattr(self._send, "__self__", None)
        if to is None or to.flow.write_paused or to.disconnected or not to.chunked_encoding:
            return False
        if self.recording is not None:
            self.recording.add(piece)
        self.flow.ledger.bytes_out += len(piece)
        to.transport.write(b"%x\r\n%b\r\n" % (len(piece), piece))
        return True

    async def finish(self, last: bytes = b"") -> None:
        """Ends the body, once the kernel took what was sent (`http/protocol.py`): a client that does not read keeps its
        flow waiting to the end."""
        for start in range(0, len(last), _PIECE_BYTES):
            self.flow.wait_for(Awaited.CLIENT, time.monotonic())
            piece = last[start : start + _PIECE_BYTES]
            self.flow.ledger.bytes_out += len(piece)
            if self.recording is not None:
                self.recording.add(piece)
            await self._send({"type": "http.response.body", "body": piece, "more_body": True})
        self.flow.wait_for(Awaited.CLIENT, time.monotonic())
        await self._send({"type": "http.response.body", "body": b"", "more_body": False})

    async def fail(self, error: ApiError, patience_s: float) -> None:
        """Tells the client of an error: an HTTP error while nothing was sent, else the last event of its stream; cuts a
        client that does not read."""
        try:
            async with asyncio.timeout(patience_s):
                await self._end_comments()
                if not self._started:
                    await self._fail_whole(error, self.endpoint.dialect)
                elif self._streaming:
                    await self.finish(error.sse_event(self.endpoint.dialect))
                else:
                    self.cut()
        except TimeoutError:
            self.cut()

    def cut(self) -> None:
        cut(self._send)

    def rtt_s(self) -> float | None:
        """The round trip to whoever is at the other end, by the kernel's smoothed measure (Linux): a balancer's, where
        one is between. None for a request of a peer cell, or a connection that is gone."""
        exchange: Any = getattr(self._send, "__self__", None)
        if self.hop is not None or exchange is None or exchange.disconnected or not hasattr(socket, "TCP_INFO"):
            return None
        connection = exchange.transport.get_extra_info("socket")
        try:
            info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO_RTT + 4)
        except (OSError, AttributeError):
            return None
        rtt_us: int = struct.unpack_from("I", info, _TCP_INFO_RTT)[0]
        return rtt_us / 1e6 or None

    async def _comment(self, comment: bytes, marks: Sequence[tuple[bytes, bytes]]) -> None:
        if not self._started:
            await self._start(200, [*waiting_headers(self.flow.ledger), *marks])
        await self.write(comment)

    async def _end_comments(self) -> None:
        """From now on nothing but the answer is sent; a comment that is being sent ends first."""
        self.answered = True
        if self._commenting is not None:
            await asyncio.wait([self._commenting])

    async def _fail_whole(self, error: ApiError, dialect: Dialect) -> None:
        payload = error.payload(dialect)
        extra = [(name.encode(), value.encode()) for name, value in error.headers.items()]
        sized = [(b"content-type", b"application/json"), (b"content-length", str(len(payload)).encode())]
        await self.start(error.status(dialect), [*sized, *answer_headers(self.flow.ledger), *extra])
        await self.finish(payload)

    async def _watch(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self.flow.abort(EndCause.CLIENT_GONE)

    def _too_large(self, size: int) -> ApiError:
        message = f"the body has {size} bytes; allowed: at most max_body_bytes = {self._max_body_bytes}"
        return ApiError(ErrorCode.BODY_TOO_LARGE, message, headers={"connection": "close"})


_DIGEST_BYTES = 8


class Digests:
    """Keyed digests of requests, the same in all gateways of one cell."""

    def __init__(self, secret: str) -> None:
        self._key = hmac.digest(secret.encode(), b"raylane body digest", "sha256")

    def of(self, path: str, body: bytes) -> str:
        """The digest of a request to `path`, with its body as its client sent it: 16 hexadecimal digits."""
        digest = hashlib.blake2b(path.encode() + b"\0", digest_size=_DIGEST_BYTES, key=self._key)
        digest.update(body)
        return digest.hexdigest()


DigestOf = Callable[[bytes], str]

AT_ONCE_BYTES = 1 << 18
"""A body of no more bytes takes at most some milliseconds, and handing it to a thread a tenth of one."""


@dataclass(frozen=True, slots=True)
class BodyReading:
    """What was read, the body for the engine (as it came, but for a salt), the digest of the body as it came, and the
    seconds of CPU that it took."""

    inquiry: Inquiry
    body: bytes
    digest: str
    cpu_s: float


class Reader:
    """Reads bodies beside the event loop's other work. One thread, and not several: where it holds the interpreter's
    lock the loop waits for it, and would for each of them."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, "body-reader")

    async def read(
        self, kind: BodyKind, body: bytes, limits: RequestLimits, salt_of: SaltOf | None, digest_of: DigestOf
    ) -> BodyReading:
        """The inquiry in a body, and the body to send on. Raises ApiError."""
        if len(body) <= AT_ONCE_BYTES:
            return _read(kind, body, limits, salt_of, digest_of)
        return await asyncio.get_running_loop().run_in_executor(
            self._thread, _read, kind, body, limits, salt_of, digest_of
        )


def _read(
    kind: BodyKind, body: bytes, limits: RequestLimits, salt_of: SaltOf | None, digest_of: DigestOf
) -> BodyReading:
    began = time.thread_time()
    inquiry, digest = read_inquiry(kind, body, limits.max_values, salt_of, limits), digest_of(body)
    if salt_of is not None and inquiry.kind not in UNSALTED and inquiry.cache_salt is not None:
        body = with_member(body, "cache_salt", inquiry.cache_salt)
    return BodyReading(inquiry, body, digest, time.thread_time() - began)
