"""A proxy in front of an S3 server that counts what passes and does what networks do: delay, limit, cut, damage."""

import asyncio
import re
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

_HEAD_END = b"\r\n\r\n"
_PIECE = 64 << 10


@dataclass
class Passed:
    """A request that passed: the bytes asked for (end exclusive; None: all), and how many of the body were sent on."""

    method: str
    path: str
    span: tuple[int, int] | None
    sent: int = 0

    @property
    def name(self) -> str:
        """The object's, below bucket and prefix."""
        return self.path.split("/", 3)[-1]


@dataclass
class Proxy:
    """`delay_s`: added to each request. `bytes_per_s`: of all connections together. `damages`, `cuts`: asked for each
    range of an object; whether to change one byte of it, or after how many bytes of it to close the connection."""

    port: int = 0
    delay_s: float = 0.0
    bytes_per_s: float | None = None
    damages: Callable[[Passed], bool] = lambda passed: False
    cuts: Callable[[Passed], int | None] = lambda passed: None
    answers: Callable[[Passed], bytes | None] = lambda passed: None
    """Asked first; an answer in the server's place."""
    adds: Callable[[Passed], dict[str, str]] = lambda passed: {}
    """Headers for the server's answer."""
    tls: ssl.SSLContext | None = None
    passed: list[Passed] = field(default_factory=list)

    @property
    def endpoint(self) -> str:
        return f"http{'s' if self.tls else ''}://127.0.0.1:{self.port}"

    def gets(self, part: str = "") -> list[Passed]:
        """GETs of objects whose path holds `part`."""
        return [one for one in self.passed if one.method == "GET" and one.span is not None and part in one.path]

    def sent(self, part: str = "") -> int:
        """Bytes of objects that were sent on."""
        return sum(one.sent for one in self.gets(part))


@contextmanager
def proxy_of(upstream: str, **settings: object) -> Iterator[Proxy]:
    """Runs one in a thread."""
    proxy = Proxy(**settings)  # type: ignore[arg-type]
    loop = asyncio.new_event_loop()
    host, _, port = upstream.removeprefix("http://").partition(":")

    async def serve() -> asyncio.Server:
        return await asyncio.start_server(
            lambda reader, writer: _Connection(proxy, host, int(port)).run(reader, writer),
            "127.0.0.1",
            0,
            ssl=proxy.tls,
        )

    server = loop.run_until_complete(serve())
    proxy.port = server.sockets[0].getsockname()[1]
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    try:
        yield proxy
    finally:
        loop.call_soon_threadsafe(server.close)
        asyncio.run_coroutine_threadsafe(_end_tasks(), loop).result(10)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)
        loop.close()


async def _end_tasks() -> None:
    tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


class _Connection:
    """One client's, with one of its own to the server."""

    def __init__(self, proxy: Proxy, host: str, port: int) -> None:
        self._proxy, self._host, self._port = proxy, host, port

    async def run(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        up_writer = None
        try:
            up_reader, up_writer = await asyncio.open_connection(self._host, self._port, limit=1 << 20)
            while await self._one(reader, writer, up_reader, up_writer):
                pass
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            for one in (writer, up_writer):
                if one is not None:
                    one.close()
                    with suppress(OSError, asyncio.CancelledError):
                        await one.wait_closed()

    async def _one(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        up_reader: asyncio.StreamReader,
        up_writer: asyncio.StreamWriter,
    ) -> bool:
        """Whether the connection goes on."""
        head = await reader.readuntil(_HEAD_END)
        body = await reader.readexactly(_length(head))
        method, path, _ = head.split(b" ", 2)
        passed = Passed(method.decode(), path.decode(), _span(head))
        self._proxy.passed.append(passed)
        if self._proxy.delay_s:
            await asyncio.sleep(self._proxy.delay_s)
        if (answer := self._proxy.answers(passed)) is not None:
            writer.write(answer)
            await writer.drain()
            return True
        up_writer.write(head + body)
        await up_writer.drain()
        answer_head = await up_reader.readuntil(_HEAD_END)
        added = "".join(f"{name}: {value}\r\n" for name, value in self._proxy.adds(passed).items())
        writer.write(answer_head.removesuffix(b"\r\n") + added.encode() + b"\r\n")
        left = 0 if passed.method == "HEAD" else _length(answer_head)
        is_object = passed.method == "GET" and b" 206 " in answer_head.split(b"\r\n", 1)[0]
        cut = self._proxy.cuts(passed) if is_object else None
        damaged = is_object and self._proxy.damages(passed)
        while left:
            if cut is not None and passed.sent >= cut:
                return False
            piece = await up_reader.read(min(_PIECE, left))
            if not piece:
                return False
            if damaged:
                piece, damaged = bytes([piece[0] ^ 1]) + piece[1:], False
            writer.write(piece)
            await writer.drain()
            passed.sent += len(piece)
            left -= len(piece)
            if self._proxy.bytes_per_s is not None:
                await self._slow_down(len(piece))
        await writer.drain()
        return True

    async def _slow_down(self, size: int) -> None:
        """The connections take turns: what one sends delays all that come after."""
        proxy = self._proxy
        now = asyncio.get_running_loop().time()
        at = max(now, getattr(proxy, "free_at", 0.0)) + size / (proxy.bytes_per_s or 1)
        proxy.free_at = at  # type: ignore[attr-defined]
        await asyncio.sleep(at - now)


def _length(head: bytes) -> int:
    found = re.search(rb"(?i)\r\ncontent-length: *(\d+)", head)
    return int(found[1]) if found else 0


def _span(head: bytes) -> tuple[int, int] | None:
    found = re.search(rb"(?i)\r\nrange: *bytes=(\d+)-(\d+)", head)
    return (int(found[1]), int(found[2]) + 1) if found else None
