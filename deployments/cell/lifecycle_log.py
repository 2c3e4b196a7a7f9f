"""The lives in a cell, as rows of its store: an event for each that began to serve, each that ended, and each start
(`departure.py`). The directory writes them, and reads them when it starts again; `raylane up`, `explain` and `simulate`
read them, whether the cell still runs or not."""

import logging
import sqlite3
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from deployments.cell.departure import EVENTS, Ended, Event
from deployments.store import CellStore, CellStoreError, KeptValue, reader
from deployments.wire import Natural, WireError

log = logging.getLogger("raylane.departures")

FAILED_START = "logs/failed-start-{}.log"
"""Below the run directory, by model."""
MAX_EVENTS = 50_000
"""So many of the newest are kept."""
MAX_WAITING = 256


@dataclass(frozen=True, slots=True)
class CellBeginning:
    """When a cell was brought up, and the number of the last event before it."""

    unix_s: float = 0.0
    after: Natural = 0


class LifecycleLog:
    """Nothing raises: what cannot be read is logged and left out. What cannot be written is written with the next
    event; of more than `MAX_WAITING` such the oldest are lost."""

    def __init__(self, store: CellStore) -> None:
        self._store = store
        self._waiting: deque[Event] = deque(maxlen=MAX_WAITING)
        self._held = KeptValue(store, "held", list[Ended])

    def write(self, event: Event) -> None:
        """Adds an event, and what could not be written before."""
        self._store.health.lost_lines += len(self._waiting) == MAX_WAITING
        self._waiting.append(event)
        with suppress(OSError):  # the store has said so
            self._store.write(self._add)
            self._waiting.clear()

    def keep_held(self, ends: Iterable[Ended]) -> bool:
        """Replaces what the next directory is to tell of those that it finds gone: the end that each member would have,
        were it killed now, with the requests that it holds. Whether it is written."""
        return self._held.write(list(ends))

    def held(self) -> list[Ended]:
        """What the last directory kept so."""
        return self._held.read()

    def read(self, began_unix_s: float = 0.0) -> list[Event]:
        """The events of the cell that was brought up then, in the order in which they were written. Not by their times:
        the clock may have gone back."""
        kept = KeptValue(self._store, "beginning", CellBeginning)
        beginning = kept.read()
        if beginning.unix_s != began_unix_s:
            last = [number for (number,) in self._store.rows("select max(number) from lives") if number]
            kept.write(beginning := CellBeginning(began_unix_s, *last))
        rows = self._store.rows("select number, body from lives where number > ? order by number", beginning.after)
        return [event for _, event in _events(rows)]

    def _add(self, file: sqlite3.Connection) -> None:
        rows = [(event.at_unix_s, EVENTS.encode(event)) for event in self._waiting]
        file.executemany("insert into lives (at_unix_s, body) values (?, ?)", rows)
        file.execute("delete from lives where number <= (select max(number) from lives) - ?", (MAX_EVENTS,))


def write_story(run_dir: Path | None, model: str, story: str) -> str:
    """Writes why a model's last start failed, and returns the file's path; nothing where it cannot be written."""
    if run_dir is None:
        return ""
    path = run_dir / FAILED_START.format(model.replace("/", "+"))
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(story, encoding="utf-8", errors="backslashreplace")
    except OSError as error:
        log.error("%s cannot be written: %s", path, error)
        return ""
    return str(path)


def read_lives(path: Path, since_unix_s: float = 0.0, after: int = 0) -> list[tuple[int, Event]]:
    """The events in a cell's store from that time on, of those with a larger number than `after`, with their numbers.
    Raises OSError, and CellStoreError where the file is none."""
    query = "select number, body from lives where at_unix_s >= ? and number > ? order by number"
    with reader(path) as file:
        return list(_events(file.execute(query, (since_unix_s, after))))


@dataclass(eq=False)
class LifecycleTail:
    """Reads the events of a cell as they are added, from `since_unix_s` on."""

    path: Path
    since_unix_s: float
    _after: int = field(init=False, default=0)

    def news(self) -> list[Event]:
        """The events that were added since it was last asked. Nothing raises: what cannot be read now is read later."""
        try:
            found = read_lives(self.path, self.since_unix_s, self._after)
        except (OSError, CellStoreError):
            return []
        self._after = max([self._after, *(number for number, _ in found)])
        return [event for _, event in found]


def _events(rows: Iterable[tuple[int, bytes]]) -> Iterator[tuple[int, Event]]:
    for number, body in rows:
        try:
            yield number, EVENTS.decode(body)
        except WireError as error:
            log.warning("event %d of the lives is left out: %s", number, error)
