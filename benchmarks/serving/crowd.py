"""Long streams that keep an engine busy while something else is measured."""

import asyncio
import contextlib
from collections.abc import Callable

from benchmarks.serving.leaver import Leaver


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
