"""Counts the requests of one gateway: a ledger that closes is put into a queue. Every few seconds a thread counts what
is there, and the directory gets it. A request pays for one `append`."""

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from deployments.telemetry.ledger import Ledger
from deployments.telemetry.line_log import LogHealth
from deployments.telemetry.verdicts import RequestVerdict
from deployments.traffic.counts import Period, Stream, Stretches, StretchRecord

DELIVER_S = 10.0
"""What a killed gateway loses at most."""
_ANSWER_S = 5.0
LONGEST_S = 60.0
"""Nobody counted in a longer time between two deliveries: the clock went ahead, or the gateway stood still."""
MAX_PENDING = 20_000
"""Counts (of one stretch and stream) that may wait for a directory that takes none: about 20 MB."""


class TrafficRecorder:
    """Counts from the moment at which it is made. `add` takes the complete ledger of a request that ended."""

    def __init__(
        self, gateway_id: str, region: str, health: LogHealth, unix_s: Callable[[], float] = time.time
    ) -> None:
        self._gateway_id = gateway_id
        self._region = region
        self._health = health
        self._unix_s = unix_s
        self._closed: deque[Ledger] = deque()
        self.add: Callable[[Ledger], None] = self._closed.append
        self._pending = Stretches()
        self._under_way: StretchRecord | None = None
        """The last delivery, until it is answered, and its number."""
        self._number = 0
        self._watched_s = unix_s()
        self._counting = threading.Lock()

    async def run(self, directory: Any) -> None:
        """Delivers for ever."""
        while True:
            await asyncio.sleep(DELIVER_S)
            await self.deliver(directory)

    async def deliver(self, directory: Any) -> None:
        """Counts the queue, and delivers it. Nothing raises: what is not answered is delivered again, and then the
        rest."""
        await asyncio.to_thread(self._count)
        if self._under_way is None:
            self._number += 1
            self._under_way, self._pending = self._pending.record(), Stretches()
        try:
            async with asyncio.timeout(_ANSWER_S):
                await directory.traffic.remote(self._gateway_id, self._number, self._under_way)
        except Exception as error:  # any failure of Ray, or of the disk under the store
            self._keep(error)
        else:
            self._under_way = None
            self._health.well()

    def _count(self) -> None:
        with self._counting:
            now = self._unix_s()
            while self._closed:
                count(self._pending, self._closed.popleft(), self._region)
            if self._watched_s < now <= self._watched_s + LONGEST_S:  # not where a clock was set
                self._pending.watch(self._watched_s, now)
            self._watched_s = now

    def _keep(self, error: Exception) -> None:
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
