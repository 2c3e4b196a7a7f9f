"""uvicorn's HTTP/1.1 protocol with the limits that it lacks, for servers that face clients of any manners.

- Every state of a connection ends: a request's head must be whole within `HEAD_S` and `HEAD_BYTES`, its body within
  `body_due_s` (also where it was answered before its body came), and an idle or closing connection is
  dropped after the keep-alive time.
- What a client does not read is not kept: writing waits as soon as the kernel takes no more, and an idle or closing
  connection with unread bytes is dropped, where uvicorn would wait for the client for ever.
- A request that a proxy might read otherwise is refused (`check_head`); fields behind a chunked body are passed over.
- An HTTP/1.0 client gets no chunks.
- What comes while an answer is on its way is read on and kept, up to `MAX_PIPELINED` requests: uvicorn stops to read
  then, and misses that a client leaves.
- What is refused gets its answer in OpenAI's error format.
- A connection that ends while its client still sends is closed towards the client first, and what comes is read and
  thrown away for `LINGER_S` (nginx's "lingering close"): the kernel answers bytes that nobody reads with a reset, which
  takes the answer from a client that has not read it yet.
- A client that offers an upgrade (Java's offers h2c with every request) is answered as if it had not; uvicorn's parser
  would drop the request's body.
"""

import asyncio
import json
import re
from collections.abc import Callable, Sequence
from typing import Any

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from deployments.http.limits import ClientLimits

HEAD_S = 30.0
HEAD_BYTES = 64 << 10
MAX_PIPELINED = 16
"""So many requests, with 64 KiB of body each, may wait on a connection for the one before them; nobody who means well
sends more."""
LATER_S = 5.0
"""A body that is too slow is ended by the app, in its own words; if it does not, by the protocol, so much later."""
LINGER_S = 5.0
"""So long a client may go on sending after the answer that ends its connection."""
_UPGRADE = re.compile(rb"\r\nupgrade:", re.IGNORECASE)
_HOST = re.compile(rb"[^\s/?#@\\]*")


def body_due_s(limits: ClientLimits, received: int) -> float:
    """How long after its head a body may still be coming, of which so many bytes have come (as Apache's
    `RequestReadTimeout` with `MinRate`)."""
    return limits.body_s + received / limits.body_bytes_per_s


class BadHead(ValueError):
    """Why a head is refused; the message is for the client."""


def check_head(version: str, headers: Sequence[tuple[bytes, bytes]]) -> None:
    """Raises BadHead for what a proxy in front may read otherwise: where a request ends, or whom it is for (RFC 9112,
    sections 3.2 and 6; "request smuggling"). `headers` with names in lower case.

    The parser (llhttp, strict) refuses by itself: a second content-length, one beside transfer-encoding or that is no
    number, transfer encodings that do not end in chunked, space before a colon, folded fields, bare line feeds, bad
    chunk sizes.
    """
    if version not in ("1.0", "1.1"):
        raise BadHead(f"HTTP version {version}; allowed: 1.1, 1.0")
    names = [name for name, _ in headers]
    hosts = names.count(b"host")
    if hosts > 1 or (not hosts and version == "1.1"):
        raise BadHead(
            f"{hosts} Host headers; allowed: exactly one" + (", or none in HTTP/1.0" if version == "1.0" else "")
        )
    if hosts and not _HOST.fullmatch(headers[names.index(b"host")][1]):
        raise BadHead("the Host header is no host; allowed: a name or an address, with or without a port")
    if names.count(b"authorization") > 1:
        raise BadHead("Authorization: allowed: once")
    if names.count(b"x-api-key") > 1:
        raise BadHead("x-api-key: allowed: once")
    codings = names.count(b"transfer-encoding")
    if codings and (
        version == "1.0" or codings > 1 or headers[names.index(b"transfer-encoding")][1].lower() != b"chunked"
    ):
        raise BadHead("Transfer-Encoding: allowed: chunked, once, and not in HTTP/1.0")
    if names.count(b"content-length") > (0 if codings else 1):
        raise BadHead("Content-Length: allowed: once, and not beside Transfer-Encoding")


class GuardedProtocol(HttpToolsProtocol):
    """One connection. `limits` are asked for when they are needed: they may change."""

    def __init__(self, limits: Callable[[], ClientLimits], **given: Any) -> None:
        super().__init__(**given)
        self._limits = limits
        self._in_head = True
        self._head_bytes = 0
        self._turns = 0
        self._head_timer: asyncio.TimerHandle | None = None
        self._body_timer: asyncio.TimerHandle | None = None
        self._body_bytes = 0
        self._body_began_s = 0.0
        self._refusal = BadHead("Invalid HTTP request received.")
        self._answering: RequestResponseCycle | None = None
        self._lingering = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A client connected: it owes the head of a request."""
        super().connection_made(transport)
        # asyncio's TLS takes a limit of 0 as reached by nothing, and would never write again.
        transport.set_write_buffer_limits(0 if transport.get_extra_info("ssl_object") is None else 1, 0)
        self._arm()
        maximum = self._limits().connections
        if len(self.connections) > maximum:
            reported = f"{maximum} connections are open, which is the limit; try again later"
            self._refuse(503, reported, "overloaded", "overloaded_error")

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is gone. uvicorn tells it to the last request alone, and the one that is being answered may be
        another."""
        self._disarm()
        self._end_body()
        self._unset_keepalive_if_required()  # uvicorn leaves the timer to itself where the connection broke
        answering = self._answering
        if answering is not None and not answering.response_complete:
            answering.disconnected = True
            answering.message_event.set()
        self.pipeline.clear()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Bytes came. Counts those of a head that is not whole yet."""
        if self._lingering:
            return
        turns = self._turns
        super().data_received(_without_upgrade(data) if self._in_head else data)
        if self._lingering or self.transport.is_closing():
            return
        if not self._in_head:
            self._await_body()
            return
        if self._turns == turns:  # else what belongs to the head is unknown, but less than one read
            self._head_bytes += len(data)
            if self._head_bytes > HEAD_BYTES:
                self._refuse(431, f"the request's head has over {HEAD_BYTES} bytes")
                return
        if self._head_bytes and self._head_timer is None:
            self._arm()

    def on_header(self, name: bytes, value: bytes) -> None:
        """A field came. Behind the body there are some, too, which no proxy has looked at: they are none of the
        request's."""
        if self._in_head:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """The head is whole. Raises BadHead, which ends the parsing."""
        try:
            check_head(self.parser.get_http_version(), self.headers)
            if len(self.pipeline) >= MAX_PIPELINED:
                raise BadHead(f"over {MAX_PIPELINED} requests wait on this connection for their turn")
        except BadHead as error:
            self._refusal = error
            raise
        self._in_head = False
        self._head_bytes = self._body_bytes = 0
        self._body_began_s = self.loop.time()
        self._turns += 1
        self._disarm()
        super().on_headers_complete()
        if self.cycle is not self._answering:
            self.flow.resume_reading()

    def on_body(self, body: bytes) -> None:
        self._body_bytes += len(body)
        super().on_body(body)
        if self.flow.read_paused and self.cycle is not self._answering:
            self.transport.abort()

    def on_message_complete(self) -> None:
        """The body is whole; what comes next is another head."""
        self._in_head = True
        self._turns += 1
        self._end_body()
        super().on_message_complete()
        if self.cycle.response_complete and not self.transport.is_closing():  # it was answered before: idle from now on
            self._unset_keepalive_if_required()
            keep_alive_s = self.timeout_keep_alive
            self.timeout_keep_alive_task = self.loop.call_later(keep_alive_s, self.timeout_keep_alive_handler)

    def on_response_complete(self) -> None:
        """The answer is written, if not yet read."""
        if self._lingering:
            self.server_state.total_requests += 1
            return
        super().on_response_complete()
        if self.transport.is_closing():
            self.timeout_keep_alive_task = self.loop.call_later(self.timeout_keep_alive, self.transport.abort)

    def timeout_keep_alive_handler(self) -> None:
        """The connection has been idle for long; `close` would wait until the client has read everything."""
        self.transport.abort()

    def send_400_response(self, msg: str) -> None:
        """What came is not HTTP, or is ambiguous."""
        self._refuse(400, str(self._refusal))

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._answering = cycle
        cycle.transport = _Answered(self.transport, self.end)  # type: ignore[assignment]
        if cycle.scope["http_version"] == "1.0":
            cycle.__class__ = _WithoutChunks
        super()._start_asgi_task(cycle, app)

    def _refuse(
        self, status: int, message: str, code: str = "invalid_http", kind: str = "invalid_request_error"
    ) -> None:
        """Answers, and ends the connection; only the latter where an answer has begun, or one before is to come."""
        answering = self._answering
        if answering is not None and not answering.response_complete:
            if answering.response_started or self._in_head or answering is not self.cycle:
                self.transport.abort()
                return
            answering.disconnected = True  # it has this answer, and the app's would be a second one
            answering.message_event.set()
        body = json.dumps({"error": {"message": message, "type": kind, "param": None, "code": code}}).encode()
        head = b"content-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n" % len(body)
        self.transport.write(STATUS_LINE[status] + head + body)
        self._linger()

    def end(self) -> None:
        """The answer to the last request is written: ends the connection, after the rest of the body."""
        if self._in_head:
            self.transport.close()
        else:
            self._linger()

    def _linger(self) -> None:
        """Ends our side, and reads on until the client ends its own, or `LINGER_S` are over."""
        if self.transport.is_closing():  # the client has gone meanwhile
            return
        self._lingering = True
        self._disarm()
        self._end_body()
        self._unset_keepalive_if_required()
        self.flow.resume_reading()
        if not self.transport.can_write_eof():  # TLS ends both sides at once, after what is written
            self.transport.close()
            return
        self.transport.write_eof()
        self.timeout_keep_alive_task = self.loop.call_later(LINGER_S, self.transport.abort)

    def _arm(self) -> None:
        self._head_timer = self.loop.call_later(HEAD_S, self._on_head_timer)

    def _disarm(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _on_head_timer(self) -> None:
        if self.cycle is None or self.cycle.response_complete:
            self.transport.abort()
        else:
            self._arm()  # half a next request came early; the one before it may take its time

    def _await_body(self) -> None:
        if self._body_timer is None:
            self._body_timer = self.loop.call_later(self._limits().body_s, self._on_body_timer)

    def _end_body(self) -> None:
        if self._body_timer is not None:
            self._body_timer.cancel()
            self._body_timer = None

    def _on_body_timer(self) -> None:
        """Ends a connection whose body has not come in time. While an app answers as it reads, the time is the app's
        own affair, and so it is while nothing is read, since enough has come."""
        now, limits = self.loop.time(), self._limits()
        if self.flow.read_paused or (self.cycle.response_started and not self.cycle.response_complete):
            self._body_began_s, self._body_bytes = now, 0
        later_s = 0.0 if self.cycle.response_complete else LATER_S
        due_s = self._body_began_s + body_due_s(limits, self._body_bytes) + later_s
        if now < due_s:
            self._body_timer = self.loop.call_later(due_s - now, self._on_body_timer)
        elif self.cycle.response_complete:
            self.transport.abort()
        else:
            reported = f"the body came too slowly: {self._body_bytes} bytes in {now - self._body_began_s:.0f} s"
            self._refuse(408, reported, "client_too_slow")


class _Answered:
    """The transport as an exchange sees it: closing it is the protocol's affair."""

    def __init__(self, transport: asyncio.Transport, end: Callable[[], None]) -> None:
        self._transport = transport
        self.write = transport.write
        self.close = end

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


class _WithoutChunks(RequestResponseCycle):
    """The answer to an HTTP/1.0 client, which knows no chunks: a body of unknown length ends with the connection."""

    async def send(self, message: Any) -> None:
        if message["type"] == "http.response.start":
            self.chunked_encoding = False
        elif self.scope["method"] != "HEAD":
            self.expected_content_length = len(message.get("body", b""))
        await super().send(message)


def _without_upgrade(data: bytes) -> bytes:
    """The same bytes with the head's `upgrade` under a name that means nothing. (A name that is cut between two reads
    is not found.)"""
    end = data.find(b"\r\n\r\n")
    end = len(data) if end < 0 else end
    found = _UPGRADE.search(data, 0, end)
    return data if found is None else data[: found.start()] + b"\r\nx-offer:" + data[found.end() :]
