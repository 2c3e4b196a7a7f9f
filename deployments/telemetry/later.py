"""Work that can wait: done a little at a time, so that a wave of answers that end together does not hold up those that begin."""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

Item = TypeVar("Item")

PAUSE_S = 0.005
_SHARE = 16
"""At each turn a sixteenth of what waits is done, and at least one: a long backlog is soon gone, a short one is never felt."""


class Later(Generic[Item]):
    """Does `work` for each item, in order, a few at each turn. `work` must not raise."""

    def __init__(self, work: Callable[[Item], None]) -> None:
        self._work = work
        self._items: deque[Item] = deque()
        self._filled = asyncio.Event()

    def add(self, item: Item) -> None:
        """The item is worked on soon."""
        self._items.append(item)
        self._filled.set()

    def __len__(self) -> int:
        return len(self._items)

    async def run(self) -> None:
        """Works for ever."""
        while True:
            await self._filled.wait()
            await asyncio.sleep(PAUSE_S)
            self._do(1 + len(self._items) // _SHARE)
            if not self._items:
                self._filled.clear()

    def flush(self) -> None:
        """Does all that waits, now."""
        self._do(len(self._items))

    def _do(self, count: int) -> None:
        for _ in range(min(count, len(self._items))):
            self._work(self._items.popleft())
