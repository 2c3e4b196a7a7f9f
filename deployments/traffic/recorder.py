"""Counts the requests of one gateway: a ledger that closes is put into a queue, and a thread counts and writes what is
there every few seconds. A request pays for one `append`."""

import asyncio
import contextlib
import sqlite3
import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path

from deployments.telemetry.ledger import Ledger
from deployments.telemetry.line_log import LogHealth
from deployments.telemetry.verdicts import RequestVerdict
from deployments.traffic.counts import Period, Stream, Stretches
from deployments.traffic.store import StoreError, TrafficStore

TRAFFIC_FILE = "traffic.sqlite"
"""In the run directory of the cluster."""
FLUSH_S = 10.0
"""What a killed gateway loses at most."""
MAX_PENDING = 20_000
"""Counts (of one stretch and stream) that may wait for a disk that cannot be written: about 20 MB."""


class TrafficRecorder:
    """Counts from the moment at which it is made. `add` takes the complete ledger of a request that ended."""

    def __init__(self, path: Path, region: str, health: LogHealth, unix_s: Callable[[], float] = time.time) -> None:
        self.store = TrafficStore(path)
        self._region = region
        self._health = health
        self._unix_s = unix_s
        self._closed: deque[Ledger] = deque()
        self.add: Callable[[Ledger], None] = self._closed.append
        self._pending = Stretches()
        self._watched_s = unix_s()
        self._flushing = threading.Lock()

    async def run(self) -> None:
        """Writes every few seconds, in a thread: no disk delays the loop."""
        while True:
            await asyncio.sleep(FLUSH_S)
            await asyncio.to_thread(self.flush)

    def flush(self) -> None:
        """Counts the queue, and writes it. Nothing raises: what cannot be written is tried again with the next one."""
        with self._flushing:
            now = self._unix_s()
            with contextlib.suppress(IndexError):
                while True:
                    count(self._pending, self._closed.popleft(), self._region)
            if self._watched_s < now:  # not after a clock was set back
                self._pending.watch(self._watched_s, now)
            self._watched_s = now
            try:
                self.store.add(self._pending)
            except (OSError, sqlite3.Error, ValueError) as error:
                self._keep(error)
            else:
                self._pending = Stretches()
                self._health.well()

    def _keep(self, error: Exception) -> None:
        if isinstance(error, StoreError) or type(error) is sqlite3.DatabaseError:  # damaged; its subclasses are not
            with contextlib.suppress(OSError):
                self.store.set_aside()
        lost = 0
        if len(self._pending.counts) > MAX_PENDING:
            lost = sum(one.requests for (period, _, _), one in self._pending.counts.items() if period is Period.HOUR)
            self._pending = Stretches()
        self._health.lost(lost, error)


def count(stretches: Stretches, ledger: Ledger, region: str) -> None:
    """Counts a request in the minute and the hour in which it ended; one that was answered before it could wait in a
    lane is not traffic, and one that a peer cell has handed over is its home's.

    By its end, since its lengths are known only then: by arrival, the newest minutes would hold short answers alone.
    """
    if ledger.submitted_s is None or not ledger.traffic_class or ledger.home:
        return
    done, ended_unix_s = ledger.usage, ledger.arrived_unix_s + ledger.wall_s
    for period in Period:
        tenant = ledger.tenant if period is Period.HOUR else ""
        counts = stretches.of(period, ended_unix_s, Stream(ledger.model, ledger.traffic_class, region, tenant))
        counts.requests += 1
        if done is not None and done.sequences:
            counts.finish(done.prompt_tokens, done.cached_tokens, done.output_tokens, done.sequences)
        elif any(decision.verdict in _TURNED_AWAY for decision in ledger.decisions):
            counts.rejected += 1


_TURNED_AWAY = frozenset({RequestVerdict.REJECTED, RequestVerdict.EXPIRED})
