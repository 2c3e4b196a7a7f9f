"""Lines that are to be sent: put in by whoever has something to say, taken out all at once by whoever writes."""

import asyncio
from collections.abc import AsyncIterator

_MOST_LINES = 100_000
"""Beyond that the other end does not read: the outbox closes itself."""


class Outbox:
    """Never blocks who puts."""

    def __init__(self) -> None:
        self._lines: list[bytes] = []
        self._filled = asyncio.Event()
        self._closed = False

    def put(self, line: bytes) -> None:
        """Adds a line; nothing once it is closed."""
        if len(self._lines) >= _MOST_LINES:
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
