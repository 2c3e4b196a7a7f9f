"""A file that gets whole lines: a write that fails leaves no part of a line behind. What every log is written with (`telemetry/line_log.py`,
`ownership/decision_log.py`, `cell/audit.py`).
"""

import contextlib
import os
from pathlib import Path


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
        self._torn = self.size > 0 and os.pread(self._descriptor, 1, self.size - 1) != b"\n"

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

    def add(self, lines: bytes, on_disk: bool = False) -> None:
        """Adds lines, each with its end; with `on_disk` they are on the disk then. Raises OSError; nothing of them is in the file then, unless the
        disk refuses even that: what is left of them is made a line of its own, by the next `add` that goes well."""
        rest = memoryview(b"\n" + lines if self._torn else lines)
        whole = len(rest)
        try:
            while rest:
                rest = rest[os.write(self._descriptor, rest) :]
            if on_disk:
                os.fsync(self._descriptor)
        except OSError:
            self._cut(whole - len(rest))
            raise
        self._torn = False
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
        self._torn = True


def rotate(path: Path, kept: int) -> None:
    """Frees the name of a full file: it becomes `x.1`, which becomes `x.2`, and so on; the larger the number, the older. Raises OSError."""
    for number in range(kept, 0, -1):
        older = path.with_name(f"{path.name}.{number}")
        newer = path if number == 1 else path.with_name(f"{path.name}.{number - 1}")
        if newer.exists():
            newer.replace(older)
