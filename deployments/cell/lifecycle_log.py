"""The file of a cell's lives: a line for each that began to serve and each that ended (`departure.py`). The directory
writes it, and reads it when it starts again; `raylane up` and `raylane explain` read it, whether the cell still runs or
not."""

import logging
from collections import deque
from collections.abc import Iterable, Iterator
from pathlib import Path

from cluster.files import write_whole
from deployments.cell.departure import Ended, Event, line_of, read_event
from deployments.telemetry.line_log import LogHealth, WholeLines, rotate

log = logging.getLogger("raylane.departures")

FILE_NAME = "logs/lifecycle.jsonl"
"""Below the run directory."""
HELD_FILE = "held.jsonl"
"""Beside it: the end that each member would have, were it killed now, with the requests that it holds."""
FAILED_START = "logs/failed-start-{}.log"
"""Below the run directory, by model."""
MAX_BYTES = 4 << 20
KEPT = 2
MAX_WAITING = 256


class LifecycleLog:
    """`path`: the file; None: nothing is kept (a test's directory). Nothing raises: what cannot be read is logged and
    left out.

    What cannot be written is written with the next event; of more than `MAX_WAITING` such the oldest are lost.
    """

    def __init__(self, path: Path | None) -> None:
        self.health = LogHealth("lifecycle")
        self._path = path
        self._waiting: deque[bytes] = deque(maxlen=MAX_WAITING)

    def write(self, event: Event) -> None:
        """Appends an event, and what could not be written before."""
        if self._path is None:
            return
        lost = int(len(self._waiting) == MAX_WAITING)
        self._waiting.append(line_of(event).encode("utf-8", "backslashreplace") + b"\n")
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            _append(self._path, b"".join(self._waiting))
        except OSError as error:
            self.health.lost(lost, error)
        else:
            self._waiting.clear()
            self.health.well()

    def keep_held(self, ends: Iterable[Ended]) -> bool:
        """Replaces what the next directory is to tell of those that it finds gone. Whether it is written."""
        if self._path is None:
            return True
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            write_whole(self._path.with_name(HELD_FILE), "".join(f"{line_of(end)}\n" for end in ends))
        except OSError as error:
            self.health.lost(0, error)
            return False
        return True

    def held(self) -> list[Ended]:
        """What the last directory kept so."""
        events = [] if self._path is None else _events(self._path.with_name(HELD_FILE))
        return [event for event in events if isinstance(event, Ended)]

    def read(self, since_unix_s: float = 0.0) -> list[Event]:
        """The events since then, in the order in which they were written; the newest `KEPT + 1` files hold them."""
        if self._path is None:
            return []
        older = [self._path.with_name(f"{self._path.name}.{number}") for number in range(KEPT, 0, -1)]
        return [event for path in (*older, self._path) for event in _events(path) if event.at_unix_s >= since_unix_s]


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


def _append(path: Path, lines: bytes) -> None:
    if path.exists() and path.stat().st_size >= MAX_BYTES:
        rotate(path, KEPT)
    file = WholeLines(path)
    try:
        file.add(lines)
    finally:
        file.close()


def _events(path: Path) -> Iterator[Event]:
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return
    except OSError as error:
        log.error("%s cannot be read: %s", path, error)
        return
    for number, line in enumerate(text.splitlines(), 1):
        try:
            yield read_event(line)
        except ValueError as error:
            log.warning("%s, line %d: %s", path, number, error)


class LifecycleTail:
    """Reads what is added to a life log, as it is added, from `since_unix_s` on; also what was added to it before it
    was rotated."""

    def __init__(self, path: Path, since_unix_s: float) -> None:
        self._path = path
        self._since_unix_s = since_unix_s
        self._inode = 0
        self._read_bytes = 0

    def news(self) -> list[Event]:
        """The events that were added since it was last asked. Nothing raises: what cannot be read now is read later."""
        try:
            status = self._path.stat()
            if (status.st_ino, status.st_size) == (self._inode, self._read_bytes):
                return []
            events = []
            if status.st_ino != self._inode:
                events = self._added(self._path.with_name(f"{self._path.name}.1"))
                self._inode, self._read_bytes = status.st_ino, 0
            events += self._added(self._path)
        except OSError:
            return []
        return [event for event in events if event.at_unix_s >= self._since_unix_s]

    def _added(self, path: Path) -> list[Event]:
        """The whole lines that were added to the file that is read, if it has that name."""
        if not path.exists() or path.stat().st_ino != self._inode:
            return []
        with path.open("rb") as file:
            file.seek(self._read_bytes)
            lines = file.read()
        whole = lines[: lines.rfind(b"\n") + 1]
        self._read_bytes += len(whole)
        events = []
        for line in whole.splitlines():
            try:
                events.append(read_event(line.decode(errors="replace")))
            except ValueError as error:
                log.warning("%s: %s", path, error)
        return events
