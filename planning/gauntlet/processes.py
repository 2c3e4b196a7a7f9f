"""The processes that play: each has a `Worker`, hears no Ctrl-C, and ends with the process that started it, however that ends. Used by `Gauntlet`."""

import multiprocessing
import os
import signal
import threading
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from planning.gauntlet.worker import Worker


@dataclass(frozen=True, slots=True)
class Done:
    """What a job found, and what its process has to tell (all of it, each time)."""

    result: Any
    notes: list[str]


class Processes:
    """A context. Where it is left by an exception, nobody waits for what is being run: the processes end at once.

    Each holds an end of a pipe of which only this process holds the other.
    """

    def __init__(self, jobs: int, memo: Path | None, traces: Path | None) -> None:
        context = multiprocessing.get_context("spawn")
        self._reader, self._writer = context.Pipe(duplex=False)
        self._pool = ProcessPoolExecutor(jobs, context, _begin, (memo, traces, self._reader))

    def submit(self, call: str, arguments: tuple[Any, ...]) -> Future[Done]:
        """Has a worker's method called. A process that starts for it hears no Ctrl-C, which reaches every process of a terminal: what is blocked here
        stays blocked there."""
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            return self._pool.submit(_do, call, arguments)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if kind is not None:
            self._writer.close()
            self._pool.shutdown(wait=False, cancel_futures=True)
        self._pool.shutdown()
        self._writer.close()
        self._reader.close()


_worker: Worker | None = None


def _begin(memo: Path | None, traces: Path | None, parent: Connection) -> None:
    global _worker
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    _worker = Worker(memo, traces)


def _end_with(parent: Connection) -> None:
    """Ends this process at once when nobody holds the other end any more. A line of the memo that this cuts off is passed over by its readers."""
    parent.poll(None)
    os._exit(1)


def _do(call: str, arguments: tuple[Any, ...]) -> Done:
    assert _worker is not None
    return Done(getattr(_worker, call)(*arguments), _worker.notes())
