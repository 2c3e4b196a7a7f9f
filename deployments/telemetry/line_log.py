"""Log files of whole lines: a write that fails leaves no part of a line behind, is counted, and takes nothing else
with it.

`WholeLines` is what every log is written with, `LineLog` one that rotates by size, `LogHealth` what is known of a
log that cannot be written.
"""

import contextlib
import logging
import os
import time
from collections.abc import Iterator
from pathlib import Path

from deployments.telemetry import table
from deployments.telemetry.table import Sample


class WholeLines:
    """An open file, at whose end lines are added. Others may add to it, too, each with one write a line.

    Opening it raises OSError. `fresh`: what is in it goes.
    """

    def __init__(self, path: Path, fresh: bool = False) -> None:
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | (os.O_TRUNC if fresh else 0)
        self._descriptor = os.open(path, flags, 0o644)
        status = os.fstat(self._descriptor)
        self._identity = status.st_dev, status.st_ino
        self.size = status.st_size
        """In bytes; what others have added counts after `is_at`."""
        self.torn = self.size > 0 and os.pread(self._descriptor, 1, self.size - 1) != b"\n"

    def is_at(self, path: Path) -> bool:
        """Whether the file is still the one of that name: not removed, not replaced. Raises OSError."""
        try:
            status = os.stat(path)
        except FileNotFoundError:
            return False
        if (status.st_dev, status.st_ino) != self._identity:
            return False
        self.size = status.st_size
        return True

    def add(self, lines: bytes) -> None:
        """Adds lines, each with its end. Raises OSError; nothing of them is in the file then, unless the disk refuses
        even that: what is left of them is made a line of its own, by the next `add` that goes well."""
        rest = memoryview(b"\n" + lines if self.torn else lines)
        whole = len(rest)
        try:
            while rest:
                rest = rest[os.write(self._descriptor, rest) :]
        except OSError:
            self._cut(whole - len(rest))
            raise
        self.torn = False
        self.size += whole

    def close(self) -> None:
        """Closes it; whatever the disk says to that is of no interest any more."""
        with contextlib.suppress(OSError):
            os.close(self._descriptor)

    def _cut(self, written: int) -> None:
        """Takes the last `written` bytes away again, unless another process has added to them."""
        if not written:
            return
        try:
            end = os.lseek(self._descriptor, 0, os.SEEK_CUR)
            if os.fstat(self._descriptor).st_size == end:
                os.ftruncate(self._descriptor, end - written)
                return
        except OSError:
            pass
        self.torn = True


def rotate(path: Path, kept: int) -> None:
    """Frees the name of a full file: it becomes `x.1`, which becomes `x.2`, and so on; the larger the number, the
    older. Raises OSError."""
    for number in range(kept, 0, -1):
        older = path.with_name(f"{path.name}.{number}")
        newer = path if number == 1 else path.with_name(f"{path.name}.{number - 1}")
        if newer.exists():
            newer.replace(older)


log = logging.getLogger("raylane.logs")

_WARN_EVERY_S = 60.0


class LogHealth:
    """Of one log. `error`: why nothing can be written to it now; None: it is well."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.lost_lines = 0
        self.error: str | None = None
        self._warned_s = -_WARN_EVERY_S

    def lost(self, lines: int, error: Exception | None = None) -> None:
        """So many lines could not be written; `error` is None where it was not even tried, since it had just failed."""
        self.lost_lines += lines
        if error is None:
            return
        new, self.error = self.error is None, f"{type(error).__name__}: {error}"
        now = time.monotonic()
        if new and now - self._warned_s >= _WARN_EVERY_S:
            self._warned_s = now
            log.warning(
                "log %s cannot be written (%s); its lines are lost until it can, and nothing else",
                self.name,
                self.error,
            )

    def well(self) -> None:
        if self.error is not None:
            self.error = None
            log.info("log %s is written again; %d lines were lost by now", self.name, self.lost_lines)


class Logs:
    """The logs of one process, by their names."""

    def __init__(self) -> None:
        self._known: dict[str, LogHealth] = {}

    def named(self, name: str) -> LogHealth:
        """The health of a log, which is known from now on."""
        return self._known.setdefault(name, LogHealth(name))

    def failing(self) -> list[LogHealth]:
        return [health for health in self._known.values() if health.error is not None]

    def samples(self) -> Iterator[Sample]:
        """What metrics say of them."""
        for health in self._known.values():
            yield table.LOG_LINES_LOST, (health.name,), health.lost_lines
            yield table.LOG_FAILING, (health.name,), float(health.error is not None)


MAX_BYTES = 64 << 20
KEPT = 5


class LineLog:
    """Appends lines to a file; its folder is made. Several processes may append to one file.

    Nothing raises: a line that cannot be written is lost and counted by `health`, and the next one is tried again.
    """

    def __init__(self, path: Path, health: LogHealth) -> None:
        self._path = path
        self._health = health
        self._file: WholeLines | None = None
        self._closed = False

    def write(self, line: str) -> bool:
        """Appends a line; nothing once it is closed. Whether it was written."""
        if self._closed:
            return False
        try:
            data = line.encode("utf-8", "backslashreplace") + b"\n"
            self._open(len(data)).add(data)
        except OSError as error:
            self._health.lost(1, error)
            return False
        self._health.well()
        return True

    def close(self) -> None:
        self._closed = True
        self._leave()

    def _open(self, more: int) -> WholeLines:
        """The file of that name, which may be another one than before: it was rotated by another process, or
        removed."""
        if self._file is not None and self._file.is_at(self._path):
            if not self._file.size or self._file.size + more <= MAX_BYTES:
                return self._file
            rotate(self._path, KEPT)
        self._leave()
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._file = WholeLines(self._path)
        return self._file

    def _leave(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None
