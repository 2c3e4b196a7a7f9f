"""The links between the local cells of a drill: TCP on loopback with a delay, which can be changed or cut while it is
used.

A link carries whatever one cell, or its clients, send to another cell's endpoint, and what comes back. Each piece of
bytes leaves it half a round trip after it came. A new connection waits for one round trip first, as its handshake
would. A link that is cut holds what it has: TCP would send it again until the link heals. Needs neither root nor
network namespaces.
"""

import asyncio
import contextlib
import socket
import struct
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import cast
from urllib.parse import urlsplit

HOP_PATH = b"POST /raylane/peers/hop"
_RESET = struct.pack("ii", 1, 0)
"""SO_LINGER of 0 seconds: a socket that is closed then sends a reset."""


class CellLink:
    """The way from one cell to the endpoint of another, at `url`. Start it in an event loop."""

    def __init__(self, target_url: str, rtt_s: float) -> None:
        self.rtt_s = rtt_s
        parts = urlsplit(target_url)
        self.place = (parts.hostname or "127.0.0.1", parts.port or 80)
        self.is_cut = False
        self.url = ""
        self.hops_s: list[float] = []
        """When requests were handed over through it (monotonic clock)."""
        self.held: list[Callable[[], None]] = []
        self._server: asyncio.Server | None = None
        self.open: set[asyncio.Transport] = set()

    async def start(self, port: int = 0) -> None:
        """Listens on a port of the loopback address (0: a free one)."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: _NearEnd(self), "127.0.0.1", port)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
            for transport in list(self.open):
                transport.abort()
            await self._server.wait_closed()

    def cut(self) -> None:
        """From now on nothing gets through."""
        self.is_cut = True

    def heal(self) -> None:
        """What was held goes on."""
        self.is_cut = False
        held, self.held = self.held, []
        for call in held:
            call()


class _End(asyncio.Protocol):
    """One end of a connection: what it receives leaves at the other end, in order."""

    def __init__(self, link: CellLink) -> None:
        self.link = link
        self.other: _End | None = None
        self.transport: asyncio.Transport | None = None
        self.has_ended = False
        self._due_s = 0.0
        self._line: deque[Callable[[_End], None]] = deque()
        self._early: list[Callable[[], None]] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's is no subclass
        self.link.open.add(self.transport)
        early, self._early = self._early, []
        for call in early:
            call()

    def data_received(self, data: bytes) -> None:
        self.later(lambda end: end.write(data))

    def eof_received(self) -> bool:
        self.has_ended = True
        self.later(_End.end)
        if self.other is not None and self.other.has_ended:  # nothing more in either direction
            self.later(_End.close)
            self.other.later(_End.close)
        return True

    def connection_lost(self, error: Exception | None) -> None:
        if self.transport is not None:
            self.link.open.discard(self.transport)
        self.later(_End.close if error is None else _End.reset)

    def later(self, call: Callable[["_End"], None]) -> None:
        """`call` with the other end, when what is sent now gets there."""
        loop = asyncio.get_running_loop()
        self._due_s = max(self._due_s, loop.time() + self.link.rtt_s / 2)
        self._line.append(call)
        loop.call_at(self._due_s, self._next)

    def not_before(self, seconds: float) -> None:
        """Nothing gets there earlier than in so many seconds."""
        self._due_s = asyncio.get_running_loop().time() + seconds

    def _next(self) -> None:
        """Timers of one moment may swap, so that each takes whatever is first in line."""
        self._arrive(self._line.popleft())

    def _arrive(self, call: Callable[["_End"], None]) -> None:
        if self.link.is_cut:
            self.link.held.append(lambda: self._arrive(call))
        elif self.other is not None:
            self.other.do(lambda: call(self.other))  # type: ignore[arg-type]

    def do(self, call: Callable[[], None]) -> None:
        """Now, or when the connection is there."""
        if self.transport is None:
            self._early.append(call)
        else:
            call()

    def write(self, data: bytes) -> None:
        if self.transport is not None and not self.transport.is_closing():
            self.transport.write(data)

    def end(self) -> None:
        if self.transport is not None and not self.transport.is_closing() and self.transport.can_write_eof():
            with contextlib.suppress(OSError):  # it broke a moment ago
                self.transport.write_eof()

    def close(self) -> None:
        if self.transport is not None:
            self.transport.close()

    def reset(self) -> None:
        """The other side sees that the connection broke, and not that it ended."""
        if self.transport is not None:
            raw = self.transport.get_extra_info("socket")
            if raw is not None:
                with contextlib.suppress(OSError):  # it is closed already, from its own side
                    raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            self.transport.abort()


class _NearEnd(_End):
    """Where a connection comes in."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self.not_before(1.5 * self.link.rtt_s)
        self._connecting = asyncio.ensure_future(self._connect())

    def data_received(self, data: bytes) -> None:
        if data.startswith(HOP_PATH):
            self.link.hops_s.append(time.monotonic())
        super().data_received(data)

    async def _connect(self) -> None:
        far = _End(self.link)
        self.other, far.other = far, self
        try:
            await asyncio.get_running_loop().create_connection(lambda: far, *self.link.place)
        except OSError:
            await asyncio.sleep(self.link.rtt_s)
            self.reset()


class CellLinks:
    """All links between cells: `between[A, B]` is the way from A to B's endpoint."""

    def __init__(self, endpoints: dict[str, str], rtt_s: Callable[[str, str], float]) -> None:
        pairs = ((one, other) for one in endpoints for other in endpoints if one != other)
        self.between = {(one, other): CellLink(endpoints[other], rtt_s(one, other)) for one, other in pairs}
        self._rtt_s = rtt_s

    async def __aenter__(self) -> "CellLinks":
        for link in self.between.values():
            await link.start()
        return self

    async def __aexit__(self, *error: object) -> None:
        for link in self.between.values():
            await link.stop()

    def of(self, cell: str, others: Iterable[str]) -> list[CellLink]:
        """Both ways between a cell and each of the others."""
        return [self.between[pair] for other in others for pair in ((cell, other), (other, cell))]

    def heal(self) -> None:
        """No link is cut or slow any more."""
        for (one, other), link in self.between.items():
            link.rtt_s = self._rtt_s(one, other)
            link.heal()
