"""The time of one model's decisions, in whole nanoseconds: it never runs backwards, not even over a restart of the controller on another machine."""

import time


class Clock:
    """Goes on from a moment of an earlier clock (its own time, and that of day), else from this machine's."""

    def __init__(self, ns: int | None = None, unix_ns: int | None = None) -> None:
        self._ahead_ns = 0
        if ns is not None and unix_ns is not None:
            passed = max(1, time.time_ns() - unix_ns)
            self._ahead_ns = ns + passed - time.monotonic_ns()

    def now(self) -> tuple[int, int]:
        """Its time and that of day."""
        return time.monotonic_ns() + self._ahead_ns, time.time_ns()
