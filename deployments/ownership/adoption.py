"""How an owner takes over leases of an owner before: a holder says that it has them, a replica that it runs them, in whatever order."""

from collections.abc import Iterable

from deployments.ownership.entries import Entries, Entry, EntryState, split
from deployments.ownership.roles import Holder
from deployments.ownership.running import Running
from deployments.scheduling import Scheduler


class Adoption:
    """`reconciled` counts how often a replica's word of what runs disagreed with the books, which were then mended."""

    def __init__(self, scheduler: Scheduler, entries: Entries) -> None:
        self.reconciled = 0
        self._scheduler = scheduler
        self._entries = entries

    def hold(self, holder: Holder, engine_id: str) -> None:
        """A holder has that lease: true as soon as its replica says so too."""
        entry = self._entries.of_engine_id(engine_id)
        if entry is not None and entry.state is EntryState.ORPHANED:
            self._entries.move(entry, EntryState.RUNNING)
            entry.holder = holder
        elif (named := split(engine_id)) is not None and self._entries.is_news(*named):
            self._entries.begin(*named, EntryState.DECLARED, holder)

    def adopt(self, replica_id: str, running: Iterable[Running], now: float) -> list[Entry]:
        """Books what a replica runs. Returns what nobody holds and it does not run: leases for the caller to end."""
        told = {one.lease.engine_id: one for one in running}
        for one in told.values():
            self._adopt(one, now)
        leases = ((entry, entry.lease) for entry in self._entries.leased_on(replica_id) if entry.state is EntryState.ORPHANED)
        gone = [entry for entry, lease in leases if lease is not None and lease.engine_id not in told]
        self.reconciled += len(gone)
        return gone

    def _adopt(self, running: Running, now: float) -> None:
        told = running.lease
        entry = self._entries.of_engine_id(told.engine_id)
        declared = entry is not None and entry.state is EntryState.DECLARED
        if not declared and not self._entries.is_news(told.request.request_id, told.attempt):
            return
        lease = self._scheduler.adopt(told, running.started, now)
        if lease is None:
            return
        self.reconciled += 1
        holder = entry.holder if entry is not None and declared else None
        state = EntryState.ORPHANED if holder is None else EntryState.RUNNING
        entry = self._entries.begin(told.request.request_id, told.attempt, state, holder, lease)
        entry.adopted = entry.answered = True
