"""The files in /dev/shm that a cluster's processes use. A process that is killed cannot remove its own: whoever ends the cluster does.

Only what our own processes were seen to have mapped is removed, and only when no process has it mapped any more.
"""

import os
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

_FOLDER = "/dev/shm/"
_LOOK_EVERY_S = 5.0


class SharedMemory:
    """What was seen, kept in a file too, so that `raylane down` can clean up after an `up` that was killed."""

    def __init__(self, record: Path) -> None:
        self._record = record
        self._seen: set[str] = set()
        self._lock = threading.Lock()

    def look(self) -> None:
        """Notes what the children of this process have mapped."""
        with self._lock:
            found = _files(process.pid for process in psutil.Process().children(recursive=True))
            if not found <= self._seen:
                self._seen |= found
                self._record.write_text("\n".join(sorted(self._seen)))


@contextmanager
def shared_memory(record: Path) -> Iterator[SharedMemory]:
    """Looks again and again; on the way out, when the processes are gone, removes what they left."""
    memory, stop = SharedMemory(record), threading.Event()

    def watch() -> None:
        while not stop.wait(_LOOK_EVERY_S):
            memory.look()

    watcher = threading.Thread(target=watch, name="shared-memory", daemon=True)
    watcher.start()
    try:
        yield memory
    finally:
        stop.set()
        watcher.join()
        remove(record)


def remove(record: Path) -> None:
    """Removes the files that a record names and that no process has mapped, then the record."""
    if not record.is_file():
        return
    left = {name for name in record.read_text().splitlines() if name.startswith(_FOLDER) and Path(name).exists()}
    in_use = _files(psutil.pids()) if left else set()
    for name in left - in_use:
        Path(name).unlink(missing_ok=True)
    record.unlink(missing_ok=True)


def _files(pids: Iterable[int]) -> set[str]:
    """The files that these processes have mapped. By inode: a semaphore is mapped under a name that it had for a moment only."""
    inodes = {inode for pid in pids for inode in _inodes(pid)}
    try:
        with os.scandir(_FOLDER) as entries:
            return {entry.path for entry in entries if entry.inode() in inodes}
    except OSError:
        return set()


def _inodes(pid: int) -> Iterator[int]:
    try:
        maps = Path(f"/proc/{pid}/maps").read_text()
    except OSError:  # gone, or another user's
        return
    for line in maps.splitlines():
        if _FOLDER in line:
            yield int(line.split(None, 5)[4])
