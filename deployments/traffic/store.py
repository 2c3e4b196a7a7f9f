"""Counts of traffic on disk: one SQLite file a node, which all its gateways write to.

    counts    period, begin, model, class, region, tenant -> the counts, as MessagePack
    watched   period, begin -> seconds in which a gateway counted
    meta      the format's version, and an id of the file, so that nobody counts a file twice

Each write is one transaction that adds to what is there: a process that is killed loses what it has not written yet,
and nothing else. Minutes are kept for three days, hours for four hundred. A file that still grows beyond `MAX_BYTES`
loses its oldest tenth.
"""

import sqlite3
import uuid
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from deployments.traffic.counts import Period, Stream, Stretches, TrafficCounts
from deployments.wire import WireError, decoder, encode

VERSION = 2
KEPT_S = {Period.MINUTE: 3 * 86_400, Period.HOUR: 400 * 86_400}
MAX_BYTES = 256 << 20
_BUSY_S = 5.0
"""How long a writer waits for another one."""
_TABLES = """
create table if not exists meta (key text primary key, value text not null) without rowid;
create table if not exists counts (
    period integer, begin integer, model text, class text, region text, tenant text, body blob not null,
    primary key (period, begin, model, class, region, tenant)
) without rowid;
create table if not exists watched (
    period integer, begin integer, seconds real not null, primary key (period, begin)
) without rowid;
"""

_counts = decoder(TrafficCounts)


class StoreError(ValueError):
    """A file that holds no counts of traffic, or of another version; the message names the file."""


class TrafficStore:
    """Opens the file for each call, so that one that was removed is made again."""

    def __init__(self, path: Path, max_bytes: int = MAX_BYTES) -> None:
        self.path = path
        self._max_bytes = max_bytes

    def add(self, new: Stretches) -> None:
        """Adds counts, all of them or none. Raises OSError or sqlite3.Error when they cannot be written, StoreError
        when the file is not one of counts."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self._open(new=True) as file:
            file.execute("begin immediate")
            _check(self.path, file, new=True)
            for (period, begin, stream), counts in new.counts.items():
                _add(file, (int(period), begin, *_names(stream)), counts)
            for (period, begin), seconds in new.seconds.items():
                file.execute(
                    "insert into watched values (?, ?, ?) on conflict do update set seconds = seconds + ?",
                    (int(period), begin, seconds, seconds),
                )
            self._forget(file, new)
            file.execute("commit")

    def read(self, period: Period, from_unix_s: float = 0.0, *, tenants: bool = False) -> Stretches:
        """The stretches of one period that begin at that time or later. Without `tenants`, these are counted together.
        Raises StoreError."""
        found = Stretches()
        try:
            with self._open() as file:
                _check(self.path, file)
                rows = file.execute(
                    "select begin, model, class, region, tenant, body from counts where period = ? and begin >= ?",
                    (int(period), from_unix_s),
                )
                for begin, model, traffic_class, region, tenant, body in rows:
                    stream = Stream(model, traffic_class, region, tenant if tenants else "")
                    found.of(period, begin, stream).merge(_counts(body))
                watched = "select begin, seconds from watched where period = ? and begin >= ?"
                for begin, seconds in file.execute(watched, (int(period), from_unix_s)):
                    found.seconds[period, begin] = seconds
        except (sqlite3.Error, ValueError) as error:
            raise error if isinstance(error, StoreError) else StoreError(f"{self.path}: {error}") from error
        return found

    def identity(self) -> str:
        """The file's own id. Raises StoreError."""
        try:
            with self._open() as file:
                return _check(self.path, file)
        except sqlite3.Error as error:
            raise StoreError(f"{self.path}: {error}") from error

    @contextmanager
    def _open(self, *, new: bool = False) -> Iterator[sqlite3.Connection]:
        """To read it needs to be writable too, if the disk allows: what a killed writer has begun is taken back."""
        place = f"{self.path.absolute().as_uri()}?mode={'rwc' if new else 'rw'}"
        with closing(sqlite3.connect(place, timeout=_BUSY_S, isolation_level=None, uri=True)) as file:
            yield file

    def set_aside(self) -> None:
        """Frees the name of a file that cannot be used: it becomes `NAME.broken`. Raises OSError."""
        self.path.replace(self.path.with_name(f"{self.path.name}.broken"))

    def _forget(self, file: sqlite3.Connection, new: Stretches) -> None:
        now = max((begin for _, begin in new.seconds), default=0)  # a clock that was wrong once does not count
        for period, kept_s in KEPT_S.items():
            _drop(file, period, now - kept_s)
        pages, free, size = (
            file.execute(f"pragma {name}").fetchone()[0] for name in ("page_count", "freelist_count", "page_size")
        )
        if (pages - free) * size > self._max_bytes:
            for period in Period:
                oldest, newest = file.execute(
                    "select min(begin), max(begin) from counts where period = ?", (int(period),)
                ).fetchone()
                if oldest is not None:
                    _drop(file, period, oldest + (newest - oldest) // 10 + 1)


def _add(file: sqlite3.Connection, key: tuple[object, ...], counts: TrafficCounts) -> None:
    where = "period = ? and begin = ? and model = ? and class = ? and region = ? and tenant = ?"
    row = file.execute(f"select body from counts where {where}", key).fetchone()
    if row is not None:
        counts = _sum(row[0], counts)
    file.execute("insert or replace into counts values (?, ?, ?, ?, ?, ?, ?)", (*key, encode(counts)))


def _sum(body: bytes, counts: TrafficCounts) -> TrafficCounts:
    try:
        whole = _counts(body)
    except WireError as error:
        raise StoreError(str(error)) from error
    whole.merge(counts)
    return whole


def _names(stream: Stream) -> tuple[str, str, str, str]:
    return stream.model, stream.traffic_class, stream.region, stream.tenant


def _drop(file: sqlite3.Connection, period: Period, before: float) -> None:
    for table in ("counts", "watched"):
        file.execute(f"delete from {table} where period = ? and begin < ?", (int(period), before))


def _check(path: Path, file: sqlite3.Connection, *, new: bool = False) -> str:
    """The id of a file of this version; `new`: an empty one becomes such a file. Raises StoreError."""
    tables = {name for (name,) in file.execute("select name from sqlite_master where type = 'table'")}
    if new and not tables:
        for statement in _TABLES.split(";"):
            file.execute(statement)
        identity = uuid.uuid4().hex
        file.executemany("insert into meta values (?, ?)", [("version", str(VERSION)), ("id", identity)])
        return identity
    meta = dict(file.execute("select key, value from meta").fetchall()) if "meta" in tables else {}
    if meta.get("version") != str(VERSION):
        raise StoreError(
            f"{path}: version = {meta.get('version')!r}; allowed: '{VERSION}', a file of counts that a gateway wrote"
        )
    return str(meta["id"])
