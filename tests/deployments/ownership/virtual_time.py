"""An event loop whose clock jumps to the next thing that is due: minutes of beats and time-outs pass in milliseconds,
the same way each time."""

import asyncio
import selectors
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from types import ModuleType
from unittest import mock


class VirtualLoop(asyncio.SelectorEventLoop):
    """No I/O happens in it. Raises AssertionError where all wait for something that will never come."""

    def __init__(self) -> None:
        self.now = 1_000.0
        super().__init__(_Jumping(self))

    def time(self) -> float:
        """Virtual seconds."""
        return self.now


class _Jumping(selectors.SelectSelector):
    def __init__(self, loop: VirtualLoop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        assert timeout is not None, "nothing is due, ever"
        self._loop.now += max(0.0, timeout)
        return []


class Clock:
    """Stands in for the module `time`."""

    def __init__(self, loop: VirtualLoop) -> None:
        self._loop = loop

    def monotonic(self) -> float:
        """Virtual seconds."""
        return self._loop.now

    def monotonic_ns(self) -> int:
        """...and nanoseconds."""
        return round(self._loop.now * 1e9)


@contextmanager
def virtual_time(loop: VirtualLoop, *modules: ModuleType) -> Iterator[None]:
    """Those modules read the loop's clock."""
    clock = Clock(loop)
    with ExitStack() as stack:
        for module in modules:
            stack.enter_context(mock.patch.object(module, "time", clock))
        yield
