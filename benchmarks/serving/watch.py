"""Watches a gateway's books and its engine, closely enough to time what happens in them.

`EngineWatch` reads the engine replica's own feed, which carries vLLM's scheduler statistics after each step (at most every 50 ms: times from it are
late by up to that). `BooksWatch` asks the gateway's status every few milliseconds while somebody waits.
"""

import asyncio
import contextlib
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import aiohttp

from benchmarks.serving.gateway import Counts, counts, read_status
from deployments.protocol import FEED_PATH, Load, ReplicaState, decode

POLL_S = 0.005
NOTHING = Load(ReplicaState.READY, running=0, waiting=0, exchanges=0, kv_usage=0.0)


class NeverError(RuntimeError):
    """What was waited for did not happen in time."""


class EngineWatch:
    """The engine's load as it was last told. An async context manager."""

    def __init__(self, session: aiohttp.ClientSession, url: str, headers: dict[str, str]) -> None:
        self._session = session
        self._url = url + FEED_PATH
        self._headers = headers
        self._changed = asyncio.Condition()
        self.load = NOTHING

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._read())
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task

    async def until(self, holds: Callable[[Load], bool], timeout_s: float) -> float:
        """The monotonic time at which `holds` was first seen to be so. Raises NeverError."""
        try:
            async with asyncio.timeout(timeout_s), self._changed:
                await self._changed.wait_for(lambda: self._task.done() or holds(self.load))
        except TimeoutError:
            raise NeverError(f"the engine still shows {self.load} after {timeout_s:g} s") from None
        if self._task.done():
            raise NeverError("the engine's feed has ended")
        return time.monotonic()

    async def _read(self) -> None:
        timeout = aiohttp.ClientTimeout(total=None)
        async with self._session.get(self._url, headers=self._headers, timeout=timeout) as response:
            response.raise_for_status()
            async for line in response.content:
                message = decode(line)
                if isinstance(message, Load):
                    async with self._changed:
                        self.load = message
                        self._changed.notify_all()


class BooksWatch:
    """The gateway's books, asked for again and again."""

    def __init__(self, session: aiohttp.ClientSession, url: str, folder: Path) -> None:
        self._session = session
        self._url = url
        self._folder = folder

    async def now(self) -> Counts:
        """The books at this moment."""
        return counts(await self.report())

    async def report(self) -> dict[str, Any]:
        """The gateway's whole status."""
        return await read_status(self._session, self._url, self._folder)

    async def until(self, holds: Callable[[Counts], bool], timeout_s: float) -> float:
        """The monotonic time at which an answer of which `holds` is true came. Raises NeverError."""
        deadline = time.monotonic() + timeout_s
        while True:
            books = await self.now()
            if holds(books):
                return time.monotonic()
            if time.monotonic() > deadline:
                raise NeverError(f"the gateway's books still show {books} after {timeout_s:g} s")
            await asyncio.sleep(POLL_S)
