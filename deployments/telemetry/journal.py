"""What becomes of a ledger once its request's answer ended: it waits for the engine's account (`Closing`), then goes to
the JSON access log, the trace file (opt-in) that `raylane bench` and the simulator replay, and the last ones in memory.

No file holds any text of a prompt or an answer. Both rotate by size, so that a forgotten gateway does not fill a
disk.
"""

import asyncio
import json
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Generic, TypeVar

from cluster.spec import GatewaySpec
from deployments.protocol import Finished, FirstTokens
from deployments.telemetry.ledger import Ledger
from deployments.telemetry.line_log import LineLog, Logs


class Closing:
    """Ledgers whose request ended and whose engine statistics may still be under way: each is handed on once, at most
    `patience_s` late."""

    def __init__(self, hand_on: Callable[[Ledger], None], patience_s: float = 1.0) -> None:
        self._hand_on = hand_on
        self._patience_s = patience_s
        self.peer_patience_s = patience_s
        """...of one that a peer cell has served, whose engine's account comes from there."""
        self._open: dict[str, Ledger] = {}
        self._ended: dict[str, float] = {}

    def open(self, ledger: Ledger) -> None:
        """A request went to an engine under `ledger.attempt_id`."""
        self._open[ledger.attempt_id] = ledger

    def finished(self, message: Finished) -> None:
        ledger = self._open.get(message.request_id)
        if ledger is None:
            return
        ledger.finished = message
        if message.request_id in self._ended:
            self._close(message.request_id)

    def peer_finished(self, peer: str, message: Finished) -> None:
        """A peer cell's account of a request that it has served."""
        ledger = self._open.get(message.request_id)
        if ledger is not None and ledger.peer == peer:
            self.finished(message)

    def first_tokens(self, message: FirstTokens, now: float) -> None:
        for attempt_id in message.request_ids:
            ledger = self._open.get(attempt_id)
            if ledger is not None and ledger.first_token_s is None:
                ledger.first_token_s = now

    def forget(self, ledger: Ledger) -> None:
        """The engine refused the request: nothing comes under that id."""
        self._open.pop(ledger.attempt_id, None)

    def ended(self, ledger: Ledger) -> None:
        """The request's answer ended. Handed on at once if nothing more is to come."""
        if ledger.attempt_id not in self._open:
            self._hand_on(ledger)
        elif ledger.finished is not None:
            self._close(ledger.attempt_id)
        else:
            self._ended[ledger.attempt_id] = time.monotonic()

    def running(self) -> Iterable[Ledger]:
        """Those whose answer has not ended."""
        return (ledger for key, ledger in self._open.items() if key not in self._ended)

    def sweep(self, now: float) -> None:
        """Hands on those that have waited long enough. Called a few times a second."""
        own_s, peer_s = now - self._patience_s, now - self.peer_patience_s
        late = [key for key, at_s in self._ended.items() if at_s < (own_s if self._open[key].peer is None else peer_s)]
        for attempt_id in late:
            self._close(attempt_id)

    def flush(self) -> None:
        """Hands on all that ended, without their statistics: the gateway stops."""
        for attempt_id in list(self._ended):
            self._close(attempt_id)

    def __len__(self) -> int:
        return len(self._open)

    def _close(self, attempt_id: str) -> None:
        self._ended.pop(attempt_id, None)
        self._hand_on(self._open.pop(attempt_id))


class Journal:
    """Appends one JSON line a request to each file that was asked for."""

    def __init__(self, access_log: Path | None, trace_file: Path | None, logs: Logs) -> None:
        self._access = LineLog(access_log, logs.named("access")) if access_log is not None else None
        self._trace = LineLog(trace_file, logs.named("trace")) if trace_file is not None else None

    def write(self, ledger: Ledger) -> None:
        if self._trace is not None:
            self._trace.write(json.dumps(ledger.record()))
        if self._access is not None:
            self._access.write(json.dumps(ledger.access_record()))

    def close(self) -> None:
        for log in (self._access, self._trace):
            if log is not None:
                log.close()


def journal_of(settings: GatewaySpec, run_dir: Path, logs: Logs) -> Journal:
    """The journal that the spec asks for; `run_dir` gets the access log."""
    access_log = run_dir / "logs" / "access.jsonl" if settings.access_log else None
    trace_file = Path(settings.trace_file) if settings.trace_file else None
    return Journal(access_log, trace_file, logs)


KEPT = 2_000


class Recent:
    """At most `kept` closed ledgers; the oldest go first."""

    def __init__(self, kept: int = KEPT) -> None:
        self._kept = kept
        self._ledgers: OrderedDict[str, Ledger] = OrderedDict()

    def add(self, ledger: Ledger) -> None:
        """Keeps a ledger whose metrics are counted (its gaps between tokens are dropped). Of an id used twice the last
        use is kept."""
        ledger.pieces = 0 if ledger.first_byte_s is None else 1 + len(ledger.itl)
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
    """Does each `work` for each item, in order, a few items at each turn. None of it may raise."""

    def __init__(self, *work: Callable[[Item], None]) -> None:
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
            item = self._items.popleft()
            for work in self._work:
                work(item)
