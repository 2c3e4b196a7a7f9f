"""Notices the end of another process of this machine at once, whoever started it: the kernel tells (`pidfd_open`)."""

import asyncio
import functools
import os
from collections.abc import Callable
from pathlib import Path

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_PID_NAMESPACE = "/proc/self/ns/pid"


@functools.cache
def machine() -> str:
    """Where a process id of this process means something: the same for all that share its kernel and its namespace of process ids. Empty where the
    system does not say."""
    try:
        return f"{_BOOT_ID.read_text().strip()}/{os.readlink(_PID_NAMESPACE)}"
    except OSError:
        return ""


class ProcessWatch:
    """Calls `ended` once, in the running loop, when the process is gone. Raises OSError where that cannot be watched, or it is gone already."""

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
