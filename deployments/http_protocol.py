"""uvicorn's HTTP/1.1 protocol with the limits that it lacks, for servers that face clients of any manners.

- A request's head must be whole within `HEAD_S` and `HEAD_BYTES`; uvicorn waits for ever, and keeps all that comes.
- What a client does not read is not kept: writing waits as soon as the kernel takes no more, and an idle or closing connection with unread bytes is
  dropped after the keep-alive time, where uvicorn would wait for the client for ever.
- What is not HTTP gets its 400 in OpenAI's error format.
- A client that offers an upgrade (Java's offers h2c with every request) is answered as if it had not; uvicorn's parser would drop the request's body.
"""

import asyncio
import json
import re
from typing import Any

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

HEAD_S = 30.0
HEAD_BYTES = 64 << 10
_UPGRADE = re.compile(rb"\r\nupgrade:", re.IGNORECASE)


class GuardedProtocol(HttpToolsProtocol):
    """One connection."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._in_head = True
        self._head_bytes = 0
        self._turns = 0
        self._head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A client connected: it owes the head of a request."""
        super().connection_made(transport)
        transport.set_write_buffer_limits(0)
        self._arm()

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is gone."""
        self._disarm()
        self._unset_keepalive_if_required()  # uvicorn leaves the timer to itself where the connection broke
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Bytes came. Counts those of a head that is not whole yet."""
        turns = self._turns
        super().data_received(_without_upgrade(data) if self._in_head else data)
        if not self._in_head or self.transport.is_closing():
            return
        if self._turns == turns:  # else what belongs to the head is unknown, but less than one read
            self._head_bytes += len(data)
            if self._head_bytes > HEAD_BYTES:
                self._refuse(431, f"the request's head has over {HEAD_BYTES} bytes")
                return
        if self._head_bytes and self._head_timer is None:
            self._arm()

    def on_headers_complete(self) -> None:
        """The head is whole."""
        self._in_head = False
        self._head_bytes = 0
        self._turns += 1
        self._disarm()
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        """The body is whole; what comes next is another head."""
        self._in_head = True
        self._turns += 1
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """The answer is written, if not yet read."""
        super().on_response_complete()
        if self.transport.is_closing():
            self.timeout_keep_alive_task = self.loop.call_later(self.timeout_keep_alive, self.transport.abort)

    def timeout_keep_alive_handler(self) -> None:
        """The connection has been idle for long. `close` would wait until the client has read everything, `abort` does not."""
        self.transport.abort()

    def send_400_response(self, msg: str) -> None:
        """What came is not HTTP."""
        self._refuse(400, msg)

    def _refuse(self, status: int, message: str) -> None:
        error = {"message": message, "type": "invalid_request_error", "param": None, "code": "invalid_http"}
        body = json.dumps({"error": error}).encode()
        head = b"content-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n" % len(body)
        self.transport.write(STATUS_LINE[status] + head + body)
        self.transport.close()
        self.timeout_keep_alive_task = self.loop.call_later(self.timeout_keep_alive, self.transport.abort)

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


def _without_upgrade(data: bytes) -> bytes:
    """The same bytes with the head's `upgrade` under a name that means nothing. (A name that is cut between two reads is not found.)"""
    end = data.find(b"\r\n\r\n")
    end = len(data) if end < 0 else end
    found = _UPGRADE.search(data, 0, end)
    return data if found is None else data[: found.start()] + b"\r\nx-offer:" + data[found.end() :]
