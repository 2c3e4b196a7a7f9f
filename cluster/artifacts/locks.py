"""Locks on files (`flock`): the kernel releases them however their process ends. For local file systems."""

import fcntl
import os
import time
from pathlib import Path


def _opened(path: Path) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT, 0o666)  # a file that somebody has removed must not block its folder


def takes_lock(descriptor: int) -> bool:
    """Whether it now has the exclusive lock."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def locked(path: Path, how: int) -> int | None:
    """A descriptor with that lock; None where the file's folder is missing or somebody else's lock forbids it."""
    try:
        descriptor = _opened(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    try:
        fcntl.flock(descriptor, how)
    except BlockingIOError:
        os.close(descriptor)
        return None
    return descriptor


def is_locked(path: Path) -> bool:
    """Whether another descriptor has any lock on it. Asked twice: to ask takes the lock for a moment. Raises
    FileNotFoundError where its folder is missing."""
    descriptor = _opened(path)
    try:
        for _ in range(2):
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return False
            except BlockingIOError:
                time.sleep(0.01)
    finally:
        os.close(descriptor)
    return True


def is_at(descriptor: int, path: Path) -> bool:
    try:
        there = path.stat()
    except FileNotFoundError:
        return False
    return os.path.samestat(os.fstat(descriptor), there)
