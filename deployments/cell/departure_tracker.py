"""Tracks the lives of processes for the directory: takes reports, writes them down, and watches the processes on its
own machine."""

import asyncio
import functools
import logging
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import psutil

from deployments.cell.departure import DepartureCause, Departures, Ended, Event, Lost, MemberKind, Ready
from deployments.cell.departure_history import DepartureHistory
from deployments.cell.lifecycle_log import LifecycleLog
from deployments.starts.start import ReplicaStart
from deployments.store import CellStore

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_PID_NAMESPACE = "/proc/self/ns/pid"


@functools.cache
def machine() -> str:
    """Where a process id of this process means something: the same for all that share its kernel and its namespace of
    process ids. Empty where the system does not say."""
    try:
        return f"{_BOOT_ID.read_text().strip()}/{os.readlink(_PID_NAMESPACE)}"
    except OSError:
        return ""


class ProcessWatch:
    """Calls `ended` once, in the running loop, when the process is gone. Raises OSError where that cannot be watched,
    or it is gone already."""

    def __init__(self, pid: int, ended: Callable[[], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._descriptor: int | None = os.pidfd_open(pid)
        self._ended = ended
        self._loop.add_reader(self._descriptor, self._fire)

    def close(self) -> None:
        """Watches no more; again is no error."""
        if self._descriptor is not None:
            self._loop.remove_reader(self._descriptor)
            os.close(self._descriptor)
            self._descriptor = None

    def _fire(self) -> None:
        if self._descriptor is not None:
            self.close()
            self._ended()


log = logging.getLogger("raylane.departures")

SETTLE_S = 30.0
"""After so long a new directory has heard of everyone who lives."""
GONE_WITHIN_S = 1.0
"""A process that is killed is gone so soon after its connections broke."""


@dataclass(frozen=True, slots=True)
class Presence:
    """A living gateway's or controller's process, on the machine `where` (`process_watch.machine`), and what would be
    lost with it now."""

    pid: int
    where: str
    held: Lost = field(default_factory=Lost)


def own_presence(held: Lost | None = None) -> Presence:
    return Presence(os.getpid(), machine(), held or Lost())


class DepartureTracker:
    """`began_unix_s`: when the cell was brought up; what was written down before is of an earlier one. Where another
    directory's beginning is in the file, this one has come in its place, and tells of its loss.

    `changed` is called at each news, `died` with each process whose end was seen here.
    """

    def __init__(
        self,
        store: CellStore,
        began_unix_s: float,
        changed: Callable[[], None],
        died: Callable[[MemberKind, str], None],
    ) -> None:
        self._log = LifecycleLog(store)
        self._history = DepartureHistory()
        self._changed: Callable[[], None] = lambda: None
        self._died = died
        self._closing = False
        self._settles_s: float | None = time.monotonic() + SETTLE_S
        self._where = machine()
        self._held: dict[tuple[MemberKind, str], Lost] = {}
        self._kept: dict[tuple[MemberKind, str], Lost] = {}
        self._watches: dict[tuple[MemberKind, str], ProcessWatch] = {}
        self._doubted: dict[tuple[MemberKind, str], asyncio.TimerHandle] = {}
        known = self._log.read(began_unix_s)
        self.starts_before = [event for event in known if isinstance(event, ReplicaStart)]
        """What an earlier directory of this cell wrote of starts."""
        self.is_first = not known
        """Whether the cell had no directory before."""
        for event in known:
            self._history.take(event)
        now = self._since_unix_s = time.time()
        kinds = (MemberKind.GATEWAY, MemberKind.CONTROLLER, MemberKind.REPLICA)
        self._unheard = {(kind, ready.who): ready for kind in kinds for ready in self._history.living(kind)}
        """Those whom an earlier directory knew, until they speak to this one."""
        self._held |= {
            (one.kind, one.who): one.lost for one in self._log.held() if (one.kind, one.who) in self._unheard
        }
        for before in self._history.living(MemberKind.DIRECTORY):
            self._take(Ended(MemberKind.DIRECTORY, before.who, now, DepartureCause.PROCESS_DIED))
        self._take(
            Ready(MemberKind.DIRECTORY, f"directory-{os.getpid()}-{time.monotonic_ns():x}", now, pid=os.getpid())
        )
        self._changed = changed

    def departures(self) -> Departures:
        return self._history.departures()

    def replica(self, replica_id: str, model: str, pid: int, where: str = "") -> None:
        self._unheard.pop((MemberKind.REPLICA, replica_id), None)
        self._take(Ready(MemberKind.REPLICA, replica_id, time.time(), model, pid, where))

    def process(self, kind: MemberKind, who: str, presence: Presence) -> None:
        """A gateway or the controller lives. There is one controller: another one before it is gone."""
        self._unheard.pop((kind, who), None)
        self._held[kind, who] = presence.held
        if self._held != self._kept and self._log.keep_held(
            Ended(*key, time.time(), DepartureCause.PROCESS_DIED, lost=lost) for key, lost in self._held.items()
        ):
            self._kept = dict(self._held)
        self._trust(kind, who)
        for before in self._history.living(MemberKind.CONTROLLER) if kind is MemberKind.CONTROLLER else ():
            if before.who != who:
                self._gone(kind, before.who)
        self._take(Ready(kind, who, time.time(), pid=presence.pid, where=presence.where))
        self._watch(kind, who, presence)

    def started(self, start: ReplicaStart) -> None:
        """A start has ended, well or not."""
        self._log.write(start)

    def ended(self, event: Ended) -> None:
        """A gateway tells of a replica's end, or of its own; its clock may be ahead of this one."""
        self._leave(event.kind, event.who)
        self._take(replace(event, at_unix_s=min(event.at_unix_s, time.time())))

    def given_up(self, kind: MemberKind, who: str) -> None:
        """It was found dead or unresponsive.

        The connections of a process that is killed break before the process is gone, so one that is watched gets a
        moment to be gone. One that speaks again within it has not ended. One that an earlier directory knew may have
        been killed with that one.
        """
        before = self._unheard.get((kind, who))
        if before is not None and before.where == self._where != "" and not psutil.pid_exists(before.pid):
            self._end(kind, who, DepartureCause.PROCESS_DIED, self._since_unix_s)
        elif (kind, who) not in self._watches:
            self._end(kind, who, DepartureCause.UNRESPONSIVE)
        elif (kind, who) not in self._doubted:
            at_unix_s = time.time()
            self._doubted[kind, who] = asyncio.get_running_loop().call_later(
                GONE_WITHIN_S, self._still_unresponsive, kind, who, at_unix_s
            )

    def sweep(self) -> bool:
        """Gives up those that an earlier directory knew and that never spoke to this one, once. Called now and then;
        whether it has just done so."""
        if self._settles_s is None or time.monotonic() < self._settles_s:
            return False
        self._settles_s = None
        for key in list(self._unheard):
            self.given_up(*key)
        return True

    def close(self) -> None:
        """The cell is taken down: processes that end from now on are no losses."""
        self._closing = True

    def _watch(self, kind: MemberKind, who: str, presence: Presence) -> None:
        if (kind, who) in self._watches or not self._where or presence.where != self._where:
            return
        try:
            self._watches[kind, who] = ProcessWatch(presence.pid, lambda: self._gone(kind, who))
        except OSError as error:  # its silence will tell
            log.info("%s %s (process %d) is not watched: %s", kind, who, presence.pid, error)

    def _still_unresponsive(self, kind: MemberKind, who: str, at_unix_s: float) -> None:
        self._end(kind, who, DepartureCause.UNRESPONSIVE, at_unix_s)

    def _gone(self, kind: MemberKind, who: str) -> None:
        self._end(kind, who, DepartureCause.PROCESS_DIED)
        self._died(kind, who)

    def _end(self, kind: MemberKind, who: str, cause: DepartureCause, at_unix_s: float | None = None) -> None:
        lost = self._held.get((kind, who), Lost())
        self._leave(kind, who)
        if not self._closing:
            self._take(Ended(kind, who, at_unix_s or time.time(), cause, lost=lost))

    def _trust(self, kind: MemberKind, who: str) -> None:
        """It is not, or no more, to be given up."""
        doubt = self._doubted.pop((kind, who), None)
        if doubt is not None:
            doubt.cancel()

    def _leave(self, kind: MemberKind, who: str) -> None:
        self._held.pop((kind, who), None)
        self._unheard.pop((kind, who), None)
        self._trust(kind, who)
        watch = self._watches.pop((kind, who), None)
        if watch is not None:
            watch.close()

    def _take(self, event: Event) -> None:
        if self._closing and isinstance(event, Ended) and not event.cause.planned:
            event = replace(event, cause=DepartureCause.STOPPED)
        before = self._history.departures()
        if not self._history.take(event):
            return
        self._log.write(event)
        if isinstance(event, Ended):
            lost = event.lost
            tell = log.info if event.cause.planned else log.warning
            tell(
                "%s %s ended: %s; %d requests broken, %d placed again",
                event.kind,
                event.who,
                event.cause,
                lost.broken,
                lost.placed_again,
            )
        if self._history.departures() != before:
            self._changed()
