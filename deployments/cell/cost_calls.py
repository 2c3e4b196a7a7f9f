"""The directory's part in bills: it alone writes the facts of which they are made (`deployments/accounting`). It knows
the replicas' lives; gateways deliver the rest again and again until it has answered.

`CostCalls` is a part of the directory's actor (`directory.py`): its methods are called through Ray.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection
from dataclasses import replace
from pathlib import Path

from cluster.spec.models import DEFAULT_GROUP, model_of
from deployments.accounting.bill import Bill
from deployments.accounting.facts import Fact, Tariff, line_of, lines_of, ns
from deployments.accounting.lives import ReplicaLives
from deployments.accounting.store import FOLDER, CostFileStore
from deployments.cell.start_calls import StartCalls
from deployments.protocol import ReplicaFacts
from deployments.starts.start import ReplicaStart, StartOutcome, StartReport

TURN_S = 5.0
"""How often it is written who is alive, while gateways deliver."""
PART_BYTES = 4 << 20


class CostCalls(StartCalls):
    """`folder` is the run directory; without one nothing is kept."""

    def __init__(
        self,
        folder: Path | None,
        began_unix_s: float | None,
        ended: Callable[[ReplicaStart], None],
        publish: Callable[[], Awaitable[None]],
    ) -> None:
        def start_ended(start: ReplicaStart) -> None:
            ended(start)
            if start.outcome is StartOutcome.FAILED:
                self._write(self._lives.gone(start.replica_id, ns(start.ended_unix_s)))

        super().__init__(folder, began_unix_s, start_ended, publish)
        self._cost_files = None if folder is None else CostFileStore(folder / FOLDER)
        self._lives = ReplicaLives() if self._cost_files is None else ReplicaLives(self._cost_files.lives())
        self._turned_s = time.monotonic()
        self._settling: asyncio.Task[None] | None = None

    async def starting(self, report: StartReport) -> None:
        await super().starting(report)
        self._began(report)

    async def started(self, report: StartReport) -> None:
        self._began(report)
        self._write(self._lives.serving(report.replica_id, *_model_and_group(report), time.time_ns()))
        await super().started(report)

    async def cost_facts(self, lines: bytes, tariffs: Collection[Tariff]) -> bool:
        """A gateway delivers facts, and what replicas cost by its spec. Whether they are written; else they are to come
        again."""
        files = self._cost_files
        if files is None:
            return True
        kept = [replace(one, costs=files.keep_costs(one.costs) if one.costs else "") for one in tariffs]
        self._write(self._lives.priced(kept))
        written = not lines or files.append(lines, time.time_ns(), self._carried)
        if time.monotonic() - self._turned_s >= TURN_S:
            self._turned_s = time.monotonic()
            self._turn()
        return written

    async def cost_names(self) -> list[tuple[str, int]]:
        """The files of which a bill is made, and their bytes."""
        return [] if self._cost_files is None else self._cost_files.files()

    async def cost_part(self, name: str, offset: int) -> bytes:
        """At most `PART_BYTES` of one of them. Raises KeyError for another name."""
        if self._cost_files is None:
            raise KeyError(name)
        return self._cost_files.part(name, offset, PART_BYTES)

    async def cost_totals(self) -> Bill:
        """All hours that are settled, summed up."""
        return Bill() if self._cost_files is None else await asyncio.to_thread(self._cost_files.totals)

    def _serves(self, facts: ReplicaFacts) -> None:
        """It registers, again and again: it may have become ready while there was no directory, or have been given up
        too soon."""
        self._write(self._lives.serving(facts.replica_id, facts.model, facts.group, time.time_ns()))

    def _began(self, report: StartReport) -> None:
        """It has its GPUs since its process began, or since it was asked for: Ray keeps processes ready, so that one
        may be older."""
        since_s = max(self._starts.asked_unix_s(report.replica_id), time.time() - report.elapsed_s)
        self._write(self._lives.starting(report.replica_id, *_model_and_group(report), ns(since_s)))

    def _vacate(self, replica_id: str, at_unix_s: float) -> None:
        """It has ended, if it is a replica."""
        self._write(self._lives.gone(replica_id, ns(min(at_unix_s, time.time()))))

    def _turn(self) -> None:
        """Writes who is alive; then settles what is due."""
        assert self._cost_files is not None
        now_ns = time.time_ns()
        running = {start.replica_id for start in self._starts.starts().running}
        self._write(self._lives.stopped(running, now_ns))
        self._cost_files.append(line_of(self._lives.alive(now_ns)), now_ns, self._carried)
        if self._settling is None or self._settling.done():
            self._settling = asyncio.create_task(self._settle(self._cost_files))

    async def _settle(self, files: CostFileStore) -> None:
        """What cannot be settled now, the next turn settles."""
        try:
            for hour_ns in files.due(time.time_ns()):
                if not files.close_hour(hour_ns, time.time_ns(), self._carried):
                    return
                await asyncio.to_thread(files.settle, hour_ns)
        except OSError as error:
            files.health.lost(0, error)

    def _write(self, news: list[Fact]) -> None:
        """Writes what the directory itself knows. What cannot be written now, the next hour's file begins with."""
        if news and self._cost_files is not None:
            self._cost_files.append(lines_of(news), time.time_ns(), self._carried)
            self._cost_files.keep_lives(self._carried())

    def _carried(self) -> bytes:
        return lines_of(self._lives.carried())


def _model_and_group(report: StartReport) -> tuple[str, str]:
    """A start is that of a model's group (`Model.group_key`)."""
    return model_of(report.model), report.model.partition("@")[2] or DEFAULT_GROUP
