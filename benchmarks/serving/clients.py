"""Clients that hang up, as a closed browser tab does, and a crowd of long streams that keeps an engine busy while
something else is measured."""

import asyncio
import contextlib
import json
import time
from collections.abc import Callable
from urllib.parse import urlsplit


class Leaver:
    """One request of `prompt_tokens` that asks for `output_tokens`. `open` sends it, `leave` hangs up."""

    def __init__(self, url: str, model: str, prompt: list[int], output_tokens: int) -> None:
        self._address = urlsplit(url)
        fields = {
            "model": model,
            "prompt": prompt,
            "max_tokens": output_tokens,
            "stream": True,
            "ignore_eos": True,
            "temperature": 0,
        }
        self._body = json.dumps(fields).encode()
        self.answered = False

    async def open(self) -> None:
        """Connects and sends the whole request."""
        self._reader, self._writer = await asyncio.open_connection(self._address.hostname, self._address.port)
        lines = (
            "POST /v1/completions HTTP/1.1",
            f"Host: {self._address.netloc}",
            "Content-Type: application/json",
            f"Content-Length: {len(self._body)}",
        )
        self._writer.write("".join(f"{line}\r\n" for line in (*lines, "")).encode() + self._body)
        await self._writer.drain()

    async def first_token(self) -> None:
        """Returns when the first event with a token has come, and sets `answered`. Raises ConnectionError when none
        comes."""
        seen = b""
        while b"\ndata: {" not in seen:
            data = await self._reader.read(65_536)
            seen += data
            if not data or not seen.startswith(b"HTTP/1.1 200"[: len(seen)]):
                raise ConnectionError(f"no token came: {seen[:300]!r}")
        self.answered = True

    async def read_on(self) -> None:
        """Reads and forgets what comes, until the server ends it."""
        while await self._reader.read(65_536):
            pass

    def leave(self, abruptly: bool) -> float:
        """Hangs up, by a FIN or `abruptly` by a reset; returns the monotonic time."""
        if abruptly:
            self._writer.transport.abort()
        else:
            self._writer.close()
        return time.monotonic()


class Crowd:
    """Clients that read endless answers; one whose answer has ended asks again at once. `restarts` counts that."""

    def __init__(self, make: Callable[[], Leaver]) -> None:
        self._make = make
        self._tasks: list[asyncio.Task[None]] = []
        self.restarts = 0
        self.leaves = 0

    def __len__(self) -> int:
        return len(self._tasks)

    def grow(self) -> None:
        """One client more."""
        self._tasks.append(asyncio.create_task(self._stay()))

    async def disperse(self) -> None:
        """All of them hang up."""
        for task in self._tasks:
            task.cancel()
        for task in self._tasks:
            with contextlib.suppress(asyncio.CancelledError):
                await task
        self._tasks.clear()

    async def _stay(self) -> None:
        while True:
            client = self._make()
            await client.open()
            try:
                await client.read_on()
            except asyncio.CancelledError:
                client.leave(abruptly=False)
                self.leaves += 1
                raise
            self.restarts += 1
