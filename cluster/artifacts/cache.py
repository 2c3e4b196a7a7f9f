"""The node-local cache of model files: entries that are whole or not there, leases by live processes, and eviction.

    entries/NAME/   manifest.json, lease, files/   a whole model; NAME holds the source and its version
    partial/NAME/   plan.json, manifest.json, files/   a download that has not finished; the manifest has what is whole
    locks/NAME      held by the process that downloads NAME
    trash/          what is being removed

An entry comes into being by one rename. Leases and locks are `flock`s, which the kernel releases when their process
ends in whatever way; a process that uses an entry holds a shared one on its `lease`, whose time of change is the last
use. Whoever removes an entry needs the exclusive one. The folder must be on a local file system.
"""

import contextlib
import fcntl
import os
import shutil
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel

from cluster.artifacts.manifest import Manifest
from cluster.artifacts.sources import ArtifactError
from cluster.files import read_json, sync_to_disk, write_json

_SPARE = 64 << 20
"""Bytes of the disk that stay free beyond a download: logs and manifests go there, too."""
_WAIT_S = 0.2
"""Between two looks of a process that waits for another one's download."""


class PlannedDownload(BaseModel):
    """What a partial download will hold when it is whole."""

    source: str
    size: int


@dataclass(frozen=True, slots=True)
class CacheEntry:
    """What `raylane models list` shows. `used_at`: seconds since the epoch."""

    name: str
    source: str
    size: int
    whole: bool
    in_use: bool
    used_at: float


class Held:
    """A lease on an entry: `files` stays there until `release`, or until the process ends."""

    def __init__(self, entry: Path, lease: int) -> None:
        self.entry = entry
        self.files = entry / "files"
        self._lease = lease

    def manifest(self) -> Manifest:
        """What it holds. Raises ArtifactError."""
        return read_json(self.entry / "manifest.json", Manifest, ArtifactError)

    def release(self) -> None:
        """Ends the lease."""
        if self._lease >= 0:
            os.close(self._lease)
            self._lease = -1


class ModelCache:
    """The cache in `folder`, of at most `max_bytes` (None: as much as the disk holds). Raises ArtifactError where the
    folder cannot be made."""

    def __init__(self, folder: Path, max_bytes: int | None = None) -> None:
        self.folder = folder.expanduser()
        self.max_bytes = max_bytes
        self._entries, self._partial, self._trash, self._locks = (
            self.folder / name for name in ("entries", "partial", "trash", "locks")
        )
        try:
            for path in (self._entries, self._partial, self._trash, self._locks):
                path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ArtifactError(
                f"artifacts.cache = {str(folder)!r}: {error.strerror} ({error.filename}); allowed: a folder that this "
                "user may write"
            ) from error

    def hold(self, name: str) -> Held | None:
        """A lease on the whole entry of that name; None where there is none."""
        while (lease := _locked(self._entries / name / "lease", fcntl.LOCK_SH)) is not None:
            if _is_at(lease, self._entries / name / "lease"):  # else it was removed meanwhile
                os.utime(lease)
                return Held(self._entries / name, lease)
            os.close(lease)
        return None

    def newest(self, source: str) -> Held | None:
        """A lease on the entry of `source` that was used last, of whatever version."""
        found = sorted(
            (entry for entry in self.list() if entry.whole and entry.source == source), key=lambda entry: -entry.used_at
        )
        return next((held for entry in found if (held := self.hold(entry.name)) is not None), None)

    @contextlib.contextmanager
    def downloading(self, name: str, waits: Callable[[int], object] = lambda there: None) -> Iterator[Path]:
        """Where the partial folder of that name is or will be, for the caller alone: waits while another process or
        thread has it, and tells `waits` again and again how many bytes that one has on the disk."""
        lock = os.open(self._locks / name, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            while not _takes_lock(lock):
                waits(_on_disk(self._partial / name))
                time.sleep(_WAIT_S)
            yield self._partial / name
        finally:
            os.close(lock)

    def publish(self, name: str, manifest: Manifest) -> Held:
        """Makes the partial folder of that name an entry, in one move, and holds it; it takes the place of a damaged
        one that is in use. The caller has its lock."""
        partial = self._partial / name
        (partial / "plan.json").unlink(missing_ok=True)
        write_json(partial / "manifest.json", manifest)
        (partial / "lease").touch()
        lease = _locked(partial / "lease", fcntl.LOCK_SH)
        assert lease is not None
        for path in (partial / "manifest.json", partial):
            sync_to_disk(path)
        with contextlib.suppress(FileNotFoundError):
            self._discard(self._entries / name)
        partial.rename(self._entries / name)
        sync_to_disk(self._entries)
        return Held(self._entries / name, lease)

    def settle(self, held: Held) -> None:
        """Notes that the files of an entry have been read from the disk, and are right."""
        write_json(held.entry / "manifest.json", held.manifest().model_copy(update={"boot_id": None}))

    def make_room(self, name: str, source: str, size: int) -> None:
        """Evicts what was used least recently until a download of `size` bytes fits the limit and the disk. The caller
        has the lock of `name`. Raises ArtifactError that says what is in the way."""
        room = os.open(self._locks / ".room", os.O_RDWR | os.O_CREAT, 0o666)
        try:
            fcntl.flock(room, fcntl.LOCK_EX)  # two downloads must not count on the same room
            (self._partial / name / "files").mkdir(parents=True, exist_ok=True)
            write_json(self._partial / name / "plan.json", PlannedDownload(source=source, size=size))
            for left in self._trash.iterdir():
                shutil.rmtree(left, ignore_errors=True)
            try:
                self._make_room(name, source, size)
            except ArtifactError:
                if not any((self._partial / name / "files").iterdir()):
                    shutil.rmtree(self._partial / name, ignore_errors=True)
                raise
        finally:
            os.close(room)

    def _make_room(self, name: str, source: str, size: int) -> None:
        where = f"source {source!r} ({_gib(size)})"
        if self.max_bytes is not None and size > self.max_bytes:
            raise ArtifactError(
                f"{where}: larger than artifacts.max_gib = {self.max_bytes / (1 << 30):g}; allowed: a higher limit"
            )
        others = sorted((one for one in self.list() if one.name != name), key=lambda one: one.used_at)
        free = [one for one in others if not one.in_use]
        for old in [one for one in free if one.source == source and not one.whole]:  # its files have changed since
            free.remove(old)
            others.remove(old)
            self._remove(old)
        missing = max(0, size - _on_disk(self._partial / name))
        self._check_room(where, others, free, size, missing)
        while free and (self._over(others, size) > 0 or not self._fits_disk(missing)):
            chosen = free.pop(0)
            if self._remove(chosen):
                others.remove(chosen)
        self._check_room(where, others, [], size, missing)  # somebody may have begun to use one meanwhile

    def _check_room(
        self, where: str, others: list[CacheEntry], free: list[CacheEntry], size: int, missing: int
    ) -> None:
        """Raises ArtifactError where it would not fit if all that is `free` were gone."""
        gone = sum(one.size for one in free)
        kept = ", ".join(f"{one.name} ({_gib(one.size)})" for one in others if one not in free) or "nothing"
        if self._over(others, size) > gone:
            limit = (self.max_bytes or 0) / (1 << 30)
            raise ArtifactError(
                f"{where}: artifacts.max_gib = {limit:g} leaves no room beside what is in use: {kept}; allowed: a "
                "higher limit"
            )
        if not self._fits_disk(missing - gone):
            raise ArtifactError(
                f"{where}: {_gib(missing)} are missing, and the disk of {self.folder} has "
                f"{_gib(shutil.disk_usage(self.folder).free)} free; in use: {kept}; free some space, or choose "
                "another artifacts.cache"
            )

    def _over(self, others: list[CacheEntry], size: int) -> int:
        return 0 if self.max_bytes is None else sum(one.size for one in others) + size - self.max_bytes

    def _fits_disk(self, missing: int) -> bool:
        return missing <= 0 or shutil.disk_usage(self.folder).free >= missing + min(_SPARE, missing)

    def evict(self, name: str) -> None:
        """Removes an entry or a partial download. Raises ArtifactError where there is none, or while it is in use."""
        found = next((one for one in self.list() if one.name == name), None)
        if found is None:
            known = ", ".join(one.name for one in self.list()) or "none"
            raise ArtifactError(f"entry {name!r}: not in {self.folder}; there are: {known}")
        if found.in_use or not self._remove(found):
            raise ArtifactError(f"entry {name!r}: a running process uses it; allowed: an entry that is not in use")

    def _remove(self, entry: CacheEntry) -> bool:
        """Whether it is gone: not if somebody has begun to use it."""
        folder = (self._entries if entry.whole else self._partial) / entry.name
        guard = folder / "lease" if entry.whole else self._locks / entry.name
        lock = _locked(guard, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if lock is None:
            return not folder.exists()
        try:
            if folder.exists() and (not entry.whole or _is_at(lock, guard)):
                self._discard(folder)
        finally:
            os.close(lock)
        return True

    def _discard(self, folder: Path) -> None:
        trash = self._trash / f"{folder.name}-{uuid.uuid4().hex}"
        folder.rename(trash)
        shutil.rmtree(trash, ignore_errors=True)

    def list(self) -> list[CacheEntry]:
        """All entries and partial downloads, by name. What is in use counts as used now."""
        found = [*map(self._entry, _folders(self._entries)), *map(self._download, _folders(self._partial))]
        return sorted((entry for entry in found if entry is not None), key=lambda entry: entry.name)

    def _entry(self, folder: Path) -> CacheEntry | None:
        lease = folder / "lease"
        try:
            in_use = _is_locked(lease)
            if in_use:
                os.utime(lease)
            used_at = lease.stat().st_mtime
            manifest = read_json(folder / "manifest.json", Manifest, ArtifactError)
        except FileNotFoundError:
            return None
        except ArtifactError:  # a manifest that cannot be read: nobody can use the entry, so it may go
            if not folder.exists():  # removed meanwhile
                return None
            return CacheEntry(folder.name, "unreadable", _on_disk(folder), True, in_use, 0.0)
        return CacheEntry(folder.name, manifest.source, manifest.size, True, in_use, used_at)

    def _download(self, folder: Path) -> CacheEntry | None:
        """While somebody downloads it, all that it will be counts; else what is there."""
        try:
            plan = read_json(folder / "plan.json", PlannedDownload, ArtifactError)
        except ArtifactError:
            plan = PlannedDownload(source="unknown", size=0)
        try:
            in_use = _is_locked(self._locks / folder.name)
            size = max(plan.size, _on_disk(folder)) if in_use else _on_disk(folder)
            return CacheEntry(folder.name, plan.source, size, False, in_use, folder.stat().st_mtime)
        except FileNotFoundError:
            return None


def _folders(folder: Path) -> list[Path]:
    """Those below it, without the files that somebody else has put there."""
    return [path for path in folder.iterdir() if path.is_dir()]


def _on_disk(folder: Path) -> int:
    total = 0
    for root, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                total += os.stat(os.path.join(root, name)).st_blocks * 512
    return total


def _gib(size: int) -> str:
    return f"{size / (1 << 30):.2f} GiB"


def _opened(path: Path) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT, 0o666)  # a file that somebody has removed must not block its folder


def _takes_lock(descriptor: int) -> bool:
    """Whether it now has the exclusive lock."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _locked(path: Path, how: int) -> int | None:
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


def _is_locked(path: Path) -> bool:
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


def _is_at(descriptor: int, path: Path) -> bool:
    try:
        there = path.stat()
    except FileNotFoundError:
        return False
    return os.path.samestat(os.fstat(descriptor), there)
