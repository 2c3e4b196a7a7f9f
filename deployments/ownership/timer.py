"""The one timer of an owner: it calls when the scheduler next has something to do though nothing happens."""

import asyncio
import time
from collections.abc import Callable


def now_s() -> float:
    """The time; whole nanoseconds, so that a log of it gives the same numbers back."""
    return time.monotonic_ns() / 1e9


class Timer:
    """Calls `ring` in the event loop, at most once for each time that it is set. An earlier time stays set."""

    def __init__(self, ring: Callable[[], None]) -> None:
        self._ring = ring
        self._timer: asyncio.TimerHandle | None = None
        self._at_s = 0.0

    def set(self, at_s: float | None) -> None:
        """It is to ring then (on `now_s`), or earlier; None: not at all."""
        if self._timer is not None:
            if at_s is not None and self._at_s <= at_s:
                return
            self._timer.cancel()
            self._timer = None
        if at_s is not None:
            self._at_s = at_s
            self._timer = asyncio.get_running_loop().call_later(max(0.0, at_s - now_s()), self._on_timer)

    def stop(self) -> None:
        """It rings no more."""
        if self._timer is not None:
            self._timer.cancel()

    def _on_timer(self) -> None:
        self._timer = None
        self._ring()
