"""A small disk of its own, which a test can fill, empty and make read-only: a tmpfs, which takes root (in a
container's own mounts, too)."""

import errno
import os
import resource
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import pytest

SIZE = 1 << 20


class SmallDisk:
    """Mounted at `path`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._filler = path / "filler"

    def fill(self, pages: int = 0) -> None:
        """Takes all the room that there is, to the last byte; but for so many pages."""
        with self._filler.open("ab", buffering=0) as file:
            for size in (1 << 16, 1 << 12, 1):
                with pytest.raises(OSError, match=os.strerror(errno.ENOSPC)):
                    _write_for_ever(file, b"x" * size)
            file.truncate(file.tell() - pages * resource.getpagesize())

    def free(self) -> None:
        """Gives it back."""
        self._filler.unlink()

    def read_only(self, only: bool) -> None:
        """As a kernel does with a disk that has failed. (It refuses while a file is open for writing.)"""
        subprocess.run(["mount", "-o", f"remount,{'ro' if only else 'rw'}", self.path], check=True)


def _write_for_ever(file: IO[bytes], piece: bytes) -> None:
    while True:
        file.write(piece)


@contextmanager
def small_disk(path: Path, size: int = SIZE) -> Iterator[SmallDisk]:
    """Mounts one of that size; skips the test where nobody may."""
    path.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", path], capture_output=True, text=True, check=False
    )
    if mounted.returncode:
        pytest.skip(f"a tmpfs cannot be mounted here (user {os.getuid()}): {mounted.stderr.strip()}")
    try:
        yield SmallDisk(path)
    finally:
        subprocess.run(["umount", "-l", path], check=True)
