"""The cell's one SQLite file: everything that must survive its directory, which alone writes it. Who ended, what
operators ordered, what bills are made of, what clients sent, and the epochs and the spec in force are rows here.

Each change is one transaction, and on the disk when `write` returns. A full disk costs what could not be written, and
nothing else: the directory goes on, and the next write tries again.
"""

import asyncio
import fcntl
import logging
import os
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

import psutil

from cluster.errors import InputError
from deployments.telemetry.line_log import LogHealth
from deployments.wire import WireError, decoder, encode

log = logging.getLogger("raylane.store")

FILE_NAME = "cell.sqlite"
"""In the run directory."""
GATEWAYS = "gateways"
"""The kept mapping by which commands on the directory's node find the gateways: by id, where each listens for its
cell."""
VERSION = 3
_LOCKED_S = 20.0
"""A directory that is killed holds its lock a moment longer."""
_BUSY_S = 5.0
_REMOTE = {
    *("9p", "afs", "beegfs", "ceph", "cifs", "fuse.ceph", "fuse.gcsfuse", "fuse.glusterfs", "fuse.juicefs"),
    *("fuse.s3fs", "fuse.sshfs", "glusterfs", "gpfs", "lustre", "nfs", "nfs4", "smb3", "smbfs"),
}
_TABLES = """
create table kept (name text primary key, body blob not null) strict, without rowid;
create table acts (number integer primary key, body blob not null) strict;
create table lives (number integer primary key, at_unix_s real not null, body blob not null) strict;
create table facts (
    number integer primary key, hour_ns integer not null, late integer not null, kind text not null,
    replica text not null, body blob not null
) strict;
create index facts_of_hours on facts (hour_ns);
create table hours (hour_ns integer primary key, settled integer not null) strict;
create table bill (
    hour_ns integer, region text, model text, grp text, share text, tenant text, class text, usd_per_hour text,
    home text, ns integer, prefill_ns integer, decode_ns integer, requests integer, prompt_tokens integer,
    cached_tokens integer, output_tokens integer, estimated integer, cut integer, estimated_prompt_tokens integer,
    estimated_output_tokens integer, late integer, external_in integer, external_out integer,
    primary key (hour_ns, region, model, grp, share, tenant, class, usd_per_hour, home)
) strict, without rowid;
create table basis (name text primary key, basis text not null) strict, without rowid;
create table costs (name text primary key, body text not null) strict, without rowid;
create table traffic (
    period integer, begin integer, model text, class text, region text, tenant text, body blob not null,
    primary key (period, begin, model, class, region, tenant)
) strict, without rowid;
create table watched (
    period integer, begin integer, seconds real not null, primary key (period, begin)
) strict, without rowid;
create table deliveries (gateway text primary key, number integer not null) strict;
"""
FoundT = TypeVar("FoundT")
Change = Callable[[sqlite3.Connection], FoundT]


class CellStoreError(InputError):
    """A file that is no store of a cell, or of another version, or a place where none can be; the message names it."""


class CellStore:
    """`path`: the file; None: everything is kept in memory (a test's directory). Raises CellStoreError where another
    directory writes the file, its version is another one, or it is not on a local disk."""

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self.health = LogHealth("store")
        self._lock: int | None = None
        self._file: sqlite3.Connection | None = None
        try:
            self._open()
        except (OSError, sqlite3.Error) as error:
            self._failed(error)

    def close(self) -> None:
        """Another one may write from now on."""
        if self._file is not None:
            self._file.close()
            self._file = None
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def write(self, change: Change[FoundT]) -> FoundT:
        """Makes a change, all of it or nothing. Raises OSError."""
        try:
            file = self._connected()
            file.execute("begin immediate")
            try:
                found = change(file)
                file.execute("commit")
            except BaseException:
                if file.in_transaction:
                    file.execute("rollback")
                raise
        except (OSError, sqlite3.Error, CellStoreError) as error:
            self._failed(error)
            raise OSError(f"{self.path}: {error}") from error
        self.health.well()
        return found

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """A connection that reads, in any thread, what is there now. Raises OSError."""
        if self.path is None:
            yield self._connected()
        else:
            try:
                with reader(self.path) as file:
                    yield file
            except CellStoreError as error:
                raise OSError(str(error)) from error

    async def ask(self, query: Change[FoundT]) -> FoundT:
        """What a query finds, asked in a thread. Raises OSError."""

        def found() -> FoundT:
            with self.reading() as file:
                return query(file)

        return await asyncio.to_thread(found)

    def rows(self, query: str, *values: object) -> list[tuple[Any, ...]]:
        """What a query finds; nothing where the file cannot be read, which is logged. A full disk has no room for what
        SQLite keeps beside a file that it may write; it can be read all the same."""
        try:
            return self._connected().execute(query, values).fetchall()
        except (OSError, sqlite3.Error, CellStoreError) as error:
            self._failed(error)
        with suppress(OSError, sqlite3.Error, CellStoreError), self.reading() as file:
            return file.execute(query, values).fetchall()
        return []

    def _connected(self) -> sqlite3.Connection:
        """The open file; a file that was removed is begun anew."""
        if self._file is not None and self.path is not None and not self.path.exists():
            log.error("%s was removed; another one is begun", self.path)
            self.close()
        return self._file or self._open()

    def _take_lock(self, path: Path) -> None:
        if self._lock is not None:
            return
        lock = os.open(path.with_name(f"{path.name}.lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        until_s = time.monotonic() + _LOCKED_S
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() > until_s:
                    os.close(lock)
                    raise CellStoreError(f"{path}: another directory writes it") from None
                time.sleep(0.1)
            else:
                self._lock = lock
                return

    def _open(self) -> sqlite3.Connection:
        """A file that is no store any more is set aside, and another one begun."""
        if self.path is not None:
            self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            refuse_remote(self.path.parent)
            self._take_lock(self.path)
        place = ":memory:" if self.path is None else str(self.path)
        for _ in range(2):
            file = sqlite3.connect(place, timeout=_BUSY_S, isolation_level=None, check_same_thread=False)
            try:
                _prepare(file, place)
                break
            except sqlite3.DatabaseError as error:
                file.close()
                if self.path is None or not _is_damaged(error):
                    raise
                self._set_aside(error)
            except BaseException:
                file.close()
                raise
        if self.path is not None:
            self.path.chmod(0o600)
        self._file = file
        return file

    def _failed(self, error: Exception) -> None:
        self.health.lost(0, error)
        if self._file is not None and _is_damaged(error):
            self._file.close()
            self._file = None
            self._set_aside(error)

    def _set_aside(self, error: Exception) -> None:
        assert self.path is not None
        log.error("%s is set aside as %s.broken: %s", self.path, self.path.name, error)
        for end in ("", "-wal", "-shm"):
            part = self.path.with_name(self.path.name + end)
            if part.exists():
                part.replace(part.with_name(f"{self.path.name}.broken{end}"))


ContentT = TypeVar("ContentT")


@dataclass(eq=False)
class KeptValue(Generic[ContentT]):
    """A value of the type `kind` that is in force under a name, until another one is."""

    store: CellStore
    name: str
    kind: type[ContentT]

    def read(self) -> ContentT:
        """What was written last; an empty one where nothing was, or where it cannot be read, which is logged: what
        gateways and replicas know stands in for it."""
        for body in self._bodies():
            try:
                return decoder(self.kind)(body)
            except WireError as error:
                log.error(
                    "%s, %s: left out, gateways and replicas tell what they know: %s", FILE_NAME, self.name, error
                )
        return self.kind()

    def write(self, content: ContentT) -> bool:
        """Keeps it; the same as before is not written again. Whether it is on the disk: the cell must go on with a full
        disk, too, and the next write tries again."""
        body = encode(content)
        if self._bodies() == [body]:
            return True
        try:
            self.store.write(lambda file: file.execute("insert or replace into kept values (?, ?)", (self.name, body)))
        except OSError:
            return False
        return True

    def _bodies(self) -> list[bytes]:
        """Not what was written: the file may have been removed or set aside since."""
        return [body for (body,) in self.store.rows("select body from kept where name = ?", self.name)]


@contextmanager
def reader(path: Path) -> Iterator[sqlite3.Connection]:
    """Reads a store, whether its cell runs or not. Raises OSError where there is none, CellStoreError where it is not
    one of this version."""
    try:
        wal = path.with_name(f"{path.name}-wal")
        mode = "mode=ro" if wal.exists() and wal.stat().st_size else "mode=ro&immutable=1"  # nobody writes it
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?{mode}", timeout=_BUSY_S, uri=True)) as file:
            _check_version(file, str(path))
            yield file
    except sqlite3.OperationalError as error:
        raise OSError(f"{path}: {error}") from error
    except sqlite3.DatabaseError as error:
        raise CellStoreError(f"{path}: {error}; allowed: the {FILE_NAME} of a cell") from error


def kept_in(path: Path, name: str, kind: type[ContentT]) -> ContentT:
    """What a store keeps under that name, whether its cell runs or not; an empty one where that cannot be read."""
    with suppress(OSError, CellStoreError, WireError), reader(path) as file:
        for (body,) in file.execute("select body from kept where name = ?", (name,)):
            return decoder(kind)(body)
    return kind()


def refuse_remote(folder: Path) -> None:
    """Raises CellStoreError for a folder on a file system of other machines: SQLite's log cannot be shared there."""
    place = folder.resolve()
    mounts = [one for one in psutil.disk_partitions(all=True) if place.is_relative_to(one.mountpoint)]
    found = max(mounts, key=lambda one: len(one.mountpoint), default=None)
    if found is not None and found.fstype in _REMOTE:
        raise CellStoreError(
            f"{folder}: is on {found.fstype}; allowed: a local disk (RAYLANE_HOME names another place)"
        )


def _prepare(file: sqlite3.Connection, place: str) -> None:
    file.execute("pragma journal_mode = wal")
    file.execute("pragma synchronous = full")
    if file.execute("select count(*) from sqlite_master").fetchone()[0]:
        _check_version(file, place)
        return
    file.executescript(f"begin immediate; {_TABLES} pragma user_version = {VERSION}; commit;")


def _check_version(file: sqlite3.Connection, place: str) -> None:
    version = file.execute("pragma user_version").fetchone()[0]
    if version != VERSION:
        raise CellStoreError(f"{place}: version {version}; allowed: {VERSION}, the {FILE_NAME} of a cell")


def _is_damaged(error: Exception) -> bool:
    return type(error) is sqlite3.DatabaseError  # "malformed", "not a database"; its subclasses are other faults
