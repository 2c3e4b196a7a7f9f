"""A Ray of our own on this machine, started and ended by one process, and the files in /dev/shm that its processes
leave.

It listens on loopback where Ray lets us, with token authentication, and is never ended by `ray stop`, which would end
every Ray of this machine. The caller's environment must be set before Ray is imported, which is why Ray is imported
inside the functions. A process that is killed cannot remove its own shared memory: whoever ends the cluster does. Only
what our own processes were seen to have mapped is removed, and only when no process has it mapped any more.
"""

import os
import shutil
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

from cluster.launch import RAY_ENVIRONMENT
from cluster.node_labels import EVERY_POOL, EVERY_ZONE, POOL, ZONE

_OBJECT_STORE_BYTES = 100 << 20
_END_PATIENCE_S = 10.0
_LOOK_EVERY_S = 0.2
_ORPHANS_S = 3.0
"""How long Ray's other processes may take to end when its head is gone (seconds)."""
_HEAD = ("gcs_server", "raylet")


@dataclass(frozen=True)
class PrivateRay:
    """A Ray of our own: its temporary folder, and the processes without which it does not live."""

    temp_dir: str
    head: tuple[psutil.Process, ...]

    def is_alive(self) -> bool:
        """Whether Ray's head can still answer."""
        return not any(_is_zombie(process) for process in self.head)


@contextmanager
def private_ray(num_cpus: int, token_file: Path) -> Iterator[PrivateRay]:
    """Starts Ray's head in this process's children. On the way out every process of it is gone, and the folder."""
    for stale in ("RAY_ADDRESS", "RAY_AUTH_TOKEN"):
        os.environ.pop(stale, None)
    temp_dir = tempfile.mkdtemp(prefix="raylane-")  # short, since Unix sockets lie in it
    # What the cluster's processes leave in their temporary folder goes with Ray's.
    os.environ |= RAY_ENVIRONMENT | {"RAY_AUTH_TOKEN_PATH": str(token_file), "TMPDIR": temp_dir}
    import ray

    own: PrivateRay | None = None
    try:
        ray.init(
            address="local",
            num_cpus=num_cpus,
            include_dashboard=False,
            log_to_driver=False,
            logging_level="ERROR",
            object_store_memory=_OBJECT_STORE_BYTES,
            namespace="raylane",
            labels={POOL: EVERY_POOL, ZONE: EVERY_ZONE},
            _node_ip_address="127.0.0.1",
            _temp_dir=temp_dir,
        )
        head = tuple(child for child in psutil.Process().children() if child.name() in _HEAD)
        own = PrivateRay(temp_dir, head)
        yield own
    finally:
        me = psutil.Process()
        ours = {*me.children(recursive=True), *processes_of(temp_dir)} - {me}
        if own is None or own.is_alive():
            ray.shutdown()
            end_processes(list(ours))
        else:  # Ray's own way out would wait for its head, and abort this process after a minute
            end_processes(list(ours), _ORPHANS_S)
        shutil.rmtree(temp_dir, ignore_errors=True)


def processes_of(temp_dir: str) -> list[psutil.Process]:
    """The processes of the Ray with that temporary folder, wherever they hang now: each has a log open in it."""
    found = []
    for process in psutil.process_iter():
        try:
            if any(file.path.startswith(temp_dir + os.sep) for file in process.open_files()):
                found.append(process)
        except psutil.Error:  # gone, or another user's
            continue
    return found


def end_processes(processes: list[psutil.Process], patience_s: float = _END_PATIENCE_S) -> None:
    """Waits for processes that should be ending, and kills those that do not."""
    alive = _outlast(processes, patience_s)
    for process in alive:
        try:
            process.kill()
        except psutil.NoSuchProcess:
            continue
    _outlast(alive, _END_PATIENCE_S)


def _outlast(processes: list[psutil.Process], patience_s: float) -> list[psutil.Process]:
    """Those that run after so long. A zombie does not, though the init process of a container may never bury it."""
    deadline = time.monotonic() + patience_s
    while True:
        _, alive = psutil.wait_procs(processes, timeout=min(_LOOK_EVERY_S, max(0.0, deadline - time.monotonic())))
        processes = [process for process in alive if not _is_zombie(process)]
        if not processes or time.monotonic() >= deadline:
            return processes


def _is_zombie(process: psutil.Process) -> bool:
    try:
        return bool(process.status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True


_FOLDER = "/dev/shm/"
_MAPPED_EVERY_S = 5.0


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
        while not stop.wait(_MAPPED_EVERY_S):
            memory.look()

    watcher = threading.Thread(target=watch, name="shared-memory", daemon=True)
    watcher.start()
    try:
        yield memory
    finally:
        stop.set()
        watcher.join()
        remove_shared_memory(record)


def remove_shared_memory(record: Path) -> None:
    """Removes the files that a record names and that no process has mapped, then the record."""
    if not record.is_file():
        return
    left = {name for name in record.read_text().splitlines() if name.startswith(_FOLDER) and Path(name).exists()}
    in_use = _files(psutil.pids()) if left else set()
    for name in left - in_use:
        Path(name).unlink(missing_ok=True)
    record.unlink(missing_ok=True)


def _files(pids: Iterable[int]) -> set[str]:
    """The files that these processes have mapped. By inode: a semaphore is mapped under a name that it had for a moment
    only."""
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
