"""The directory's part in bills: it alone writes the facts of which they are made (`deployments/accounting`). It knows
the replicas' lives; gateways deliver the rest again and again until it has answered."""

import asyncio
import time
from collections.abc import Collection
from contextlib import suppress
from dataclasses import replace

from cluster.group_key import DEFAULT_GROUP, model_of
from deployments.accounting.facts import FACTS, ExternalUsage, Fact, ReplicasAlive, Tariff, ns
from deployments.accounting.lives import ReplicaLives
from deployments.accounting.store import BillStore
from deployments.cell.spending import Reservation, Spending
from deployments.protocol import ReplicaFacts
from deployments.starts.start import StartReport
from deployments.starts.tracker import StartTracker
from deployments.store import CellStore, KeptValue
from deployments.wire import WireError

TURN_S = 5.0
"""How often it is written who is alive, while gateways deliver."""
_DAY_S = 86_400
_EXTERNAL = ExternalUsage.__name__.encode()
"""With what such a fact begins."""


class CostBook:
    """`starts`: the directory's own."""

    def __init__(self, store: CellStore, starts: StartTracker) -> None:
        self._starts = starts
        self.bills = BillStore(store)
        self._kept_spending = KeptValue(store, "spending", Spending)
        self.spending = self._kept_spending.read()
        self.lives = ReplicaLives(self.bills.known())
        self._turned_s = time.monotonic()
        self._settling: asyncio.Task[None] | None = None
        self._unwritten: list[Fact] = []

    def take(self, facts: list[bytes], tariffs: Collection[Tariff]) -> bool:
        """A gateway delivers facts, and what replicas cost by its spec. Whether they are written; else they are to come
        again."""
        bills = self.bills
        kept = [replace(one, costs=bills.keep_costs(one.costs) if one.costs else "") for one in tariffs]
        self._write(self.lives.priced(kept))
        written = bills.add(facts, time.time_ns())
        for one in (one for one in facts if written and _EXTERNAL in one[: 2 * len(_EXTERNAL)]):
            with suppress(WireError):  # it is counted as lost, and its reservation stands
                usage = FACTS.decode(one)
                if isinstance(usage, ExternalUsage):
                    self.spending = self.spending.settle(usage.attempt_id, usage.pico_usd_in + usage.pico_usd_out)
        written = self._kept_spending.write(self.spending) and written
        if time.monotonic() - self._turned_s >= TURN_S:
            self._turned_s = time.monotonic()
            self._turn()
        return written

    def reserve(self, attempt_id: str, wanted: Reservation, budget: int) -> bool:
        """Reserves a part of a tenant's `budget` of today (picodollars) for an attempt at the external tier. False: it
        has no so much left, or it cannot be kept."""
        spending = self.spending.reserve(attempt_id, wanted, budget, int(time.time()) // _DAY_S)
        if spending is None or not self._kept_spending.write(spending):
            return False
        self.spending = spending
        return True

    def serves(self, facts: ReplicaFacts) -> None:
        """It registers, again and again: it may have become ready while there was no directory, or have been given up
        too soon."""
        self._write(self.lives.serving(facts.replica_id, facts.model, facts.group, time.time_ns()))

    def began(self, report: StartReport) -> None:
        """It has its GPUs since its process began, or since it was asked for: Ray keeps processes ready, so that one
        may be older."""
        since_s = max(self._starts.asked_unix_s(report.replica_id), time.time() - report.elapsed_s)
        self._write(self.lives.starting(report.replica_id, *_model_and_group(report), ns(since_s)))

    def got_ready(self, report: StartReport) -> None:
        self.began(report)
        self._write(self.lives.serving(report.replica_id, *_model_and_group(report), time.time_ns()))

    def vacate(self, replica_id: str, at_unix_s: float) -> None:
        """It has ended, if it is a replica."""
        self._write(self.lives.gone(replica_id, ns(min(at_unix_s, time.time()))))

    def _turn(self) -> None:
        """Writes who is alive; then settles what is due."""
        now_ns = time.time_ns()
        running = {start.replica_id for start in self._starts.starts().running}
        self._unwritten = [one for one in self._unwritten if not isinstance(one, ReplicasAlive)]  # the newest says all
        self._write([*self.lives.stopped(running, now_ns), self.lives.alive(now_ns)])
        if self._settling is None or self._settling.done():
            self._settling = asyncio.create_task(self._settle())

    async def _settle(self) -> None:
        """What cannot be settled now, the next turn settles."""
        for hour_ns in self.bills.due(time.time_ns()):
            try:
                self.bills.close_hour(hour_ns)
                bill = await asyncio.to_thread(self.bills.computed, hour_ns)
                self.bills.settle(hour_ns, bill, self.lives.carried(hour_ns))
                while self.bills.forget(hour_ns):  # noqa: ASYNC110
                    await asyncio.sleep(0)  # what has come meanwhile is answered first
            except OSError:  # the store has said so
                return

    def _write(self, news: list[Fact]) -> None:
        """Writes what the directory itself knows; what cannot be written now comes with the next."""
        self._unwritten += news
        if self._unwritten and self.bills.add(self._unwritten, time.time_ns()):
            self._unwritten = []


def _model_and_group(report: StartReport) -> tuple[str, str]:
    """A start is that of a model's group (`Model.group_key`)."""
    return model_of(report.model), report.model.partition("@")[2] or DEFAULT_GROUP
