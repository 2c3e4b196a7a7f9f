"""How far a fetch is: what a replica's start, its log and `raylane status` show of it."""

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

_RATE_SPAN_S = 10.0


class FetchStep(StrEnum):
    """What a fetch does now."""

    LISTING = "listing"
    """It asks the source which files there are, and looks for them in the cache."""
    WAITING = "waiting"
    """Another process of this node fetches the same files."""
    FETCHING = "fetching"
    READY = "ready"


ProgressReport = Callable[[FetchStep, int, int], None]
"""Called with what happens, the bytes that are there, and the bytes of all files."""


def quiet(step: FetchStep, there: int, total: int) -> None:
    """Reports nothing."""


@dataclass(frozen=True, slots=True)
class FetchProgress:
    """A moment of a fetch. `there_bytes` of `total_bytes` are on the disk, of all sources that have been listed;
    `fetched_bytes` came by this process, what had to come twice counted twice; `bytes_per_s`: the rate of the last ten
    seconds."""

    there_bytes: int
    total_bytes: int
    fetched_bytes: int
    bytes_per_s: float


class FetchMeter:
    """Adds up what the fetches of one start report, one source after the other. Thread-safe: downloads call it, and
    whoever reports the start reads it."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._there = self._total = 0
        self._done_there = self._done_total = self._fetched = 0
        self._last: int | None = None
        """The bytes that were there at the last report of this process's own download."""
        self._rates: deque[tuple[float, int]] = deque()

    def of(self) -> ProgressReport:
        """Counts the next source."""
        with self._lock:
            self._done_there, self._done_total = self._done_there + self._there, self._done_total + self._total
            self._there, self._total, self._last = 0, 0, None
        return self._take

    def _take(self, step: FetchStep, there: int, total: int) -> None:
        with self._lock:
            self._there, self._total = there, total
            if step is FetchStep.FETCHING:
                self._fetched += max(0, there - self._last) if self._last is not None else 0
                self._last = there
            now = self._clock()
            self._rates.append((now, self._fetched))
            while self._rates[0][0] < now - _RATE_SPAN_S and len(self._rates) > 2:
                self._rates.popleft()

    def progress(self) -> FetchProgress:
        """This moment."""
        with self._lock:
            there, total = self._done_there + self._there, self._done_total + self._total
            return FetchProgress(there, total, self._fetched, self._rate())

    def _rate(self) -> float:
        if not self._rates:
            return 0.0
        since, before = self._rates[0]
        span_s = self._clock() - since
        return (self._fetched - before) / span_s if span_s > 0 else 0.0
