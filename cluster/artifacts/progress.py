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
class FetchReport:
    """What it took to have the files of one or more sources on this node.

    `fetched_bytes` came from the sources by this process: what had to come twice counts twice. `there_bytes` were on
    the disk before, or came by another process of the node meanwhile. Together they are at least `total_bytes`, the
    size of all files. `wall_s`: seconds from the first question to the source to the last lease.
    """

    wall_s: float
    total_bytes: int
    there_bytes: int
    fetched_bytes: int


@dataclass(frozen=True, slots=True)
class FetchProgress:
    """A moment of a fetch. `there_bytes` of `total_bytes` are on the disk, of all sources that have been listed;
    `bytes_per_s`: the rate of the last ten seconds."""

    source: str
    step: FetchStep
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
        self._began_s = clock()
        self._source, self._step = "", FetchStep.LISTING
        self._there = self._total = 0
        self._done_there = self._done_total = self._fetched = 0
        self._last: int | None = None
        """The bytes that were there at the last report of this process's own download."""
        self._rates: deque[tuple[float, int]] = deque()

    def of(self, source: str) -> ProgressReport:
        """Counts the next source."""
        with self._lock:
            self._done_there, self._done_total = self._done_there + self._there, self._done_total + self._total
            self._source, self._step, self._there, self._total, self._last = source, FetchStep.LISTING, 0, 0, None
        return self._take

    def _take(self, step: FetchStep, there: int, total: int) -> None:
        with self._lock:
            self._step, self._there, self._total = step, there, total
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
            return FetchProgress(self._source, self._step, there, total, self._fetched, self._rate())

    def _rate(self) -> float:
        if not self._rates:
            return 0.0
        since, before = self._rates[0]
        span_s = self._clock() - since
        return (self._fetched - before) / span_s if span_s > 0 else 0.0

    def report(self) -> FetchReport:
        """What it took until now."""
        with self._lock:
            total = self._done_total + self._total
            there = max(0, total - self._fetched)
            return FetchReport(self._clock() - self._began_s, total, there, self._fetched)
