"""What becomes of a closed ledger: the JSON access log, the trace file (opt-in) that `raylane bench` and the
simulator replay, and the last ones in memory.

No file holds any text of a prompt or an answer. Both rotate by size, so that a forgotten gateway does not fill a
disk.
"""

import asyncio
import json
from collections import OrderedDict, deque
from collections.abc import Callable
from pathlib import Path
from typing import Generic, TypeVar

from deployments.telemetry.ledger import Ledger
from deployments.telemetry.line_log import LineLog, Logs


class Journal:
    """Appends one JSON line a request to each file that was asked for."""

    def __init__(self, access_log: Path | None, trace_file: Path | None, logs: Logs) -> None:
        self._access = LineLog(access_log, logs.named("access")) if access_log is not None else None
        self._trace = LineLog(trace_file, logs.named("trace")) if trace_file is not None else None

    def write(self, ledger: Ledger) -> None:
        if self._access is None and self._trace is None:
            return
        record = ledger.record()
        if self._trace is not None:
            self._trace.write(json.dumps(record))
        if self._access is not None:
            kept = (
                "request_id",
                "arrived_s",
                "path",
                "model",
                "stream",
                "status",
                "outcome",
                "error",
                "replica",
                "digest",
            )
            self._access.write(
                json.dumps(
                    {
                        key: record[key]
                        for key in (*kept, "prompt_tokens", "output_tokens", "bytes_out", "ttft_s", "wall_s")
                    }
                )
            )

    def close(self) -> None:
        for log in (self._access, self._trace):
            if log is not None:
                log.close()


KEPT = 2_000


class Recent:
    """At most `kept` closed ledgers; the oldest go first."""

    def __init__(self, kept: int = KEPT) -> None:
        self._kept = kept
        self._ledgers: OrderedDict[str, Ledger] = OrderedDict()

    def add(self, ledger: Ledger) -> None:
        """Keeps a ledger whose metrics are counted (its gaps between tokens are dropped). Of an id used twice the last
        use is kept."""
        ledger.itl.clear()
        self._ledgers.pop(ledger.request_id, None)
        self._ledgers[ledger.request_id] = ledger
        if len(self._ledgers) > self._kept:
            self._ledgers.popitem(last=False)

    def get(self, request_id: str) -> Ledger | None:
        return self._ledgers.get(request_id)

    def __len__(self) -> int:
        return len(self._ledgers)


Item = TypeVar("Item")

PAUSE_S = 0.005
_SHARE = 16
"""At each turn a sixteenth of what waits is done, and at least one: a long backlog is soon gone, a short one is never
felt."""


class Later(Generic[Item]):
    """Does `work` for each item, in order, a few at each turn. `work` must not raise."""

    def __init__(self, work: Callable[[Item], None]) -> None:
        self._work = work
        self._items: deque[Item] = deque()
        self._filled = asyncio.Event()

    def add(self, item: Item) -> None:
        self._items.append(item)
        self._filled.set()

    def __len__(self) -> int:
        return len(self._items)

    async def run(self) -> None:
        while True:
            await self._filled.wait()
            await asyncio.sleep(PAUSE_S)
            self._do(1 + len(self._items) // _SHARE)
            if not self._items:
                self._filled.clear()

    def flush(self) -> None:
        self._do(len(self._items))

    def _do(self, count: int) -> None:
        for _ in range(min(count, len(self._items))):
            self._work(self._items.popleft())
