"""Connections between the gateways of a cell in virtual time (`shaky_cell.py`): they delay, repeat and break."""

import asyncio
import random
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol
from urllib.parse import urlencode

import aiohttp

from deployments.gateway.cell_pages import LanesPage
from deployments.ownership.messages import Beat, encode

TICK_S = 1e-6
"""Between two things that happen in order: what is due in the same moment happens in any."""


class Peer(Protocol):
    """A gateway as others reach it."""

    name: str
    url: str
    page: LanesPage


class Network:
    """What is between gateways. `doubles` is how likely a line arrives twice, `breaks` how likely its channel breaks
    then; who is in `cut_off` reaches nobody."""

    gateways: Sequence[Peer]

    def __init__(self, loop: asyncio.AbstractEventLoop, seed: int, doubles: float, breaks: float) -> None:
        self.loop = loop
        self.dice = random.Random(seed)
        self.doubles = doubles
        self.breaks = breaks
        self.cut_off: set[str] = set()
        self.channels: deque[Channel] = deque(maxlen=16)
        self.tasks: set[asyncio.Task[Any]] = set()

    @property
    def now(self) -> float:
        return self.loop.time()

    def delay(self) -> float:
        """Of one message (seconds): mostly short."""
        return self.dice.choice((0.0, 0.001, 0.001, 0.01, 0.05, 0.3))

    def spawn(self, work: Any) -> asyncio.Task[Any]:
        task = asyncio.ensure_future(work, loop=self.loop)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)
        return task


_BEAT = encode(Beat())


def messages_in(piece: bytes) -> Iterator[bytes]:
    """Each message in it, with its length."""
    while piece:
        end = 4 + int.from_bytes(piece[:4], "big")
        yield piece[:end]
        piece = piece[end:]


class Wire:
    """One direction of a channel: lines arrive in order, late, and now and then twice. Once it is cut, what is under
    way arrives in part."""

    def __init__(self, cell: Network, break_it: Callable[[], None]) -> None:
        self._cell = cell
        self._break = break_it
        self._queue: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._last_s = 0.0
        self._cut_s: float | None = None

    def send(self, line: bytes) -> None:
        for _ in range(1 + (self._cell.dice.random() < self._cell.doubles)):
            self._last_s = max(self._last_s + TICK_S, self._cell.now + self._cell.delay())
            self._cell.loop.call_at(self._last_s, self._arrive, line)
        if line != _BEAT and self._cell.dice.random() < self._cell.breaks:
            self._break()

    def _arrive(self, line: bytes) -> None:
        if self._cut_s is None or self._cell.now <= self._cut_s:
            self._queue.put_nowait(line)

    def cut(self, noticed_in_s: float) -> None:
        """Nothing arrives from some moment soon on; the reader hears of it after that."""
        if self._cut_s is None:
            self._cut_s = self._cell.now + self._cell.dice.choice((0.0, self._cell.delay(), 2 * self._cell.delay()))
            self._cell.loop.call_at(self._cut_s + noticed_in_s, self._queue.put_nowait, None)

    async def read(self) -> bytes | None:
        return await self._queue.get()


class Channel:
    """An HTTP exchange between two gateways; the caller's view of the answer."""

    def __init__(self, cell: Network) -> None:
        self._cell = cell
        self.up, self.down = Wire(cell, self.cut), Wire(cell, self.cut)
        self.content = self
        self.status = 0
        self.opened: asyncio.Future[int] = cell.loop.create_future()

    def cut(self) -> None:
        """Breaks it; each end hears of that at once, or late."""
        self.up.cut(self._cell.dice.choice((0.0, 0.3, 3.0)))
        self.down.cut(self._cell.dice.choice((0.0, 0.3, 3.0)))

    async def pump(self, lines: AsyncIterator[bytes]) -> None:
        async for piece in lines:
            for message in messages_in(piece):
                self.up.send(message)

    async def readany(self) -> bytes:
        line = await self.down.read()
        if line is None:
            raise aiohttp.ClientPayloadError("cut")
        return line

    def close(self) -> None:
        self.up.cut(self._cell.dice.choice((0.0, 0.3)))
        self.down.cut(0.0)

    async def serve(self, page: LanesPage, query: Mapping[str, str]) -> None:
        scope: Any = {"type": "http", "method": "POST", "headers": [], "query_string": urlencode(query).encode()}

        async def receive() -> Any:
            line = await self.up.read()
            return (
                {"type": "http.disconnect"}
                if line is None
                else {"type": "http.request", "body": line, "more_body": True}
            )

        async def send(message: Any) -> None:
            if message["type"] == "http.response.start":
                if not self.opened.done():
                    self.opened.set_result(message["status"])
            else:
                for one in messages_in(message["body"]):
                    self.down.send(one)

        await page(scope, receive, send)
        self.down.cut(0.0)


class Session:
    """A gateway's way to other gateways, in place of aiohttp's."""

    def __init__(self, cell: Network) -> None:
        self._cell = cell

    async def post(self, url: str, params: Mapping[str, str], data: AsyncIterator[bytes]) -> Channel:
        await asyncio.sleep(self._cell.delay())
        target = next((one for one in self._cell.gateways if url.startswith(one.url)), None)
        if target is None or self._cell.cut_off & {target.name, params["gateway"]}:
            raise aiohttp.ClientConnectionError("refused")
        channel = Channel(self._cell)
        self._cell.channels.append(channel)
        self._cell.spawn(channel.pump(data))
        late = self._cell.delay()
        self._cell.loop.call_later(late, lambda: self._cell.spawn(channel.serve(target.page, params)))
        channel.status = await channel.opened
        await asyncio.sleep(self._cell.delay())
        return channel
