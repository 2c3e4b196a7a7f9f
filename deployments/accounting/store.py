"""Facts and bills in the cell's store: the facts of the hours that are open, and of each hour that is settled the lines
of its bill, in place of the facts.

An hour is settled `SETTLE_S` after its end, once, in one transaction. What is reported of it later changes nothing in
it, whether it was late or the clock went back: it counts in the hour that is open, listed as late, and its time stays
unattributed. Both have a limit. Facts beyond `MAX_FACTS` an hour are lost and counted, so that their time is
unattributed; of settled hours the oldest go first, and stay in the totals. Cost files of engines are kept here, too, as
they were when the facts were written.
"""

import hashlib
import logging
import sqlite3
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from zlib import crc32

from deployments.accounting.bill import (
    AMOUNTS,
    HOUR_NS,
    Amounts,
    Bill,
    BillLine,
    Dimension,
    LineKey,
    TimeShare,
    hour_name,
    hour_of,
    summed,
)
from deployments.accounting.billing import bill_of
from deployments.accounting.facts import FACTS, AttemptUsage, ExternalUsage, Fact, Tariff, Watched, ns
from deployments.accounting.gathering import gathered
from deployments.accounting.pricing import Pricing, StepPricing, TokenPricing
from deployments.engine_model.cost_file import CostFile
from deployments.store import CellStore, reader
from deployments.wire import WireError

log = logging.getLogger("raylane.cost")

SETTLE_S = 1_200.0
"""After the end of an hour: the longest request that most specs allow, and time for a directory to come back."""
MAX_FACTS = 3_200_000
"""Of one hour: some 900 requests a second, half a GB."""
MAX_LINES = 2_000_000
"""Of settled hours: some 300 MB."""
MAX_HOURS = 400 * 24
"""Thirteen months, so that a year can be compared with the last one."""
PART_FACTS = 100_000
"""Facts that are billed at once: they take 150 MB of memory."""
FORGOTTEN_AT_ONCE = 20_000
"""Facts, in some 100 ms."""
_OPEN = "+hour_ns > (select coalesce(max(hour_ns), -1) from hours where settled)"
"""Facts that are not yet billed for good. (`+`: most are, so that no index is used, and nothing has to be sorted.)"""
_OF_GATEWAYS = AttemptUsage.__name__, ExternalUsage.__name__, Watched.__name__
_PRUNED_NS = -HOUR_NS
"""The hour of the sums of those that went."""
_KEYS = ("hour_ns", "region", "model", "grp", "share", "tenant", "class", "usd_per_hour", "home")
_DIMENSIONS = {
    Dimension.HOUR: "hour_ns",
    Dimension.REGION: "region",
    Dimension.TENANT: "tenant",
    Dimension.CLASS: "class",
}
"""What a bill may leave out of its keys; the other columns are few, and its amounts depend on the price."""


class BillStore:
    """The directory's part: writes facts, settles hours. What cannot be written is lost and counted by the store's
    `health`."""

    def __init__(self, store: CellStore) -> None:
        self.store = store
        self._closed_ns = max((hour for (hour,) in store.rows("select max(hour_ns) from hours") if hour), default=-1)
        self._in_hour = (-1, 0)
        self._is_behind = False
        self._costs: dict[str, tuple[int, str]] = {}
        """By their paths: when they were changed last, and their names here."""

    def add(self, facts: Sequence[bytes | Fact], now_ns: int) -> bool:
        """Adds facts to this hour, or to the first that is open where the clock is behind. Whether they were written,
        or are lost for good: no facts, or beyond the limit of the hour."""
        hour_ns = max(hour_of(now_ns), self._closed_ns + HOUR_NS)
        if now_ns < hour_ns and not self._is_behind:
            log.warning(
                "the clock went back into a settled hour: what is reported now counts in %s", hour_name(hour_ns)
            )
        self._is_behind = now_ns < hour_ns
        rows = list(self._rows(facts, hour_ns))
        if self._in_hour[0] != hour_ns:
            ((known,),) = self.store.rows("select count(*) from facts where hour_ns = ?", hour_ns) or [(0,)]
            self._in_hour = hour_ns, known
        if self._in_hour[1] + len(rows) > MAX_FACTS:
            self.store.health.lost(len(rows), OSError(f"{hour_name(hour_ns)} has {self._in_hour[1]:,} facts"))
            return True
        try:
            self.store.write(lambda file: _add(file, rows))
        except OSError:
            return False
        self._in_hour = hour_ns, self._in_hour[1] + len(rows)
        return True

    def known(self) -> list[Fact]:
        """What is to be known of replicas and prices by a directory that starts."""
        query = f"select kind, body from facts where {_OPEN} and kind not in (?, ?, ?) order by number"
        return [fact for row in self.store.rows(query, *_OF_GATEWAYS) if (fact := _fact(*row)) is not None]

    def keep_costs(self, path: str) -> str:
        """Keeps a cost file, and returns its name here; empty where it cannot be read."""
        try:
            changed_ns = Path(path).stat().st_mtime_ns
            known_ns, name = self._costs.get(path, (0, ""))
            if known_ns != changed_ns or not self.store.rows("select 1 from costs where name = ?", name):
                text = Path(path).read_text(encoding="utf-8")
                name = hashlib.sha256(text.encode()).hexdigest()[:16]
                self.store.write(lambda file: file.execute("insert or ignore into costs values (?, ?)", (name, text)))
                self._costs[path] = changed_ns, name
        except (OSError, UnicodeDecodeError) as error:
            if path not in self._costs:
                log.warning("the cost file %s cannot be kept, so that work is priced by tokens: %s", path, error)
                self._costs[path] = 0, ""
        return self._costs[path][1]

    def due(self, now_ns: int) -> list[int]:
        """The hours that are to be settled, oldest first."""
        query = "select distinct hour_ns from facts where hour_ns <= ? order by hour_ns"
        return [hour_ns for (hour_ns,) in self.store.rows(query, now_ns - HOUR_NS - ns(SETTLE_S))]

    def close_hour(self, hour_ns: int) -> None:
        """An hour is about to be settled: from now on nothing comes into it. Raises OSError."""
        self.store.write(lambda file: file.execute("insert or ignore into hours values (?, 0)", (hour_ns,)))
        self._closed_ns = max(self._closed_ns, hour_ns)

    def computed(self, hour_ns: int) -> Bill:
        """The bill of an hour that was closed before, and of those before it without facts. In any thread. Raises
        OSError."""
        with self.store.reading() as file:
            settled_ns = _last_settled(file)
            first_ns = settled_ns + HOUR_NS if settled_ns >= 0 else hour_ns - HOUR_NS
            return _bill_of(file, range(first_ns, hour_ns + 1, HOUR_NS))

    def settle(self, hour_ns: int, bill: Bill, carried: Iterable[Fact]) -> None:
        """Puts the bill in the place of the facts, which `forget` deletes; `carried`: what the next hours need of them.
        Raises OSError."""
        rows = list(self._rows(list(carried), hour_ns + HOUR_NS))

        def change(file: sqlite3.Connection) -> None:
            if file.execute("update hours set settled = 1 where hour_ns = ? and not settled", (hour_ns,)).rowcount:
                _keep_lines(file, bill.lines)
                file.executemany("insert or replace into basis values (?, ?)", bill.basis.items())
                _add(file, rows)
                _prune(file)

        self.store.write(change)
        if bill.unread:
            self.store.health.lost(bill.unread, OSError(f"{hour_name(hour_ns)}: facts that cannot be read"))

    def forget(self, hour_ns: int) -> bool:
        """Deletes facts of settled hours up to this one, so few at once that the directory does not stand still.
        Whether there may be more. Raises OSError."""
        query = "delete from facts where number in (select number from facts where hour_ns <= ? limit ?)"
        gone = self.store.write(lambda file: file.execute(query, (hour_ns, FORGOTTEN_AT_ONCE)).rowcount)
        return gone == FORGOTTEN_AT_ONCE

    def _rows(self, facts: Sequence[bytes | Fact], hour_ns: int) -> Iterator[tuple[object, ...]]:
        for given in facts:
            try:
                fact = FACTS.decode(given) if isinstance(given, bytes) else given
            except WireError as error:
                self.store.health.lost(1, error)
                continue
            name, body = FACTS.parts(fact)
            own_ns = hour_of(fact.to_ns if isinstance(fact, AttemptUsage) else getattr(fact, "at_ns", 0))
            row_ns = max(hour_ns, min(own_ns, hour_ns + HOUR_NS))  # its clock is ahead, or this one went back
            late = isinstance(fact, AttemptUsage | ExternalUsage) and not self._closed_ns < own_ns <= row_ns
            yield row_ns, late, name, getattr(fact, "replica_id", ""), body


def bill_in(
    file: sqlite3.Connection, since_ns: int = 0, until_ns: int | None = None, by: Sequence[Dimension] = tuple(Dimension)
) -> Bill:
    """The bill of all hours that begin in that time, settled or not; by default up to now, or to the hour that is open
    where the clock is behind. Its lines are summed up over the dimensions that are not among `by`."""
    settled_ns = _last_settled(file)
    open_hours = [
        hour for (hour,) in file.execute("select distinct hour_ns from facts where hour_ns > ?", (settled_ns,))
    ]
    last_ns = max(time.time_ns(), settled_ns + 1, *(hour + 1 for hour in open_hours)) if until_ns is None else until_ns
    found = Bill(tuple(_lines(file, max(0, since_ns), last_ns, by)), dict(file.execute("select * from basis")))
    if not open_hours:
        return found
    first_ns = settled_ns + HOUR_NS if settled_ns >= 0 else min(open_hours) - HOUR_NS
    hours = range(max(first_ns, hour_of(since_ns + HOUR_NS - 1)), last_ns, HOUR_NS)
    if not hours:
        return found
    rest = _bill_of(file, hours)
    return found.plus(Bill(summed((line.key.by(by), line.amounts) for line in rest.lines), rest.basis, rest.unread))


def totals_in(file: sqlite3.Connection) -> Bill:
    """All hours that were ever settled here, summed up (their lines' hour is 0)."""
    return Bill(tuple(_lines(file, _PRUNED_NS, 1 << 62, [one for one in Dimension if one is not Dimension.HOUR])))


def read_bill(path: Path, since_ns: int = 0, until_ns: int | None = None) -> Bill:
    """As `bill_in`, of a store, whether its cell runs or not. Raises OSError, and CellStoreError where it is none."""
    with reader(path) as file:
        return bill_in(file, since_ns, until_ns)


def _add(file: sqlite3.Connection, rows: Iterable[tuple[object, ...]]) -> None:
    file.executemany("insert into facts (hour_ns, late, kind, replica, body) values (?, ?, ?, ?, ?)", rows)


def _last_settled(file: sqlite3.Connection) -> int:
    """-1: none is."""
    return int(file.execute("select coalesce(max(hour_ns), -1) from hours where settled").fetchone()[0])


def _lines(file: sqlite3.Connection, since_ns: int, until_ns: int, by: Sequence[Dimension]) -> Iterator[BillLine]:
    left_out = {column for dimension, column in _DIMENSIONS.items() if dimension not in by}
    keys = ", ".join(("0" if key == "hour_ns" else "''") if key in left_out else key for key in _KEYS)
    places = ", ".join(str(place) for place in range(1, len(_KEYS) + 1))
    query = (
        f"select {keys}, {', '.join(f'sum({name})' for name in AMOUNTS)} from bill where hour_ns >= ? and hour_ns < ?"
    )
    for row in file.execute(f"{query} group by {places} order by {places}", (since_ns, until_ns)):
        hour_ns, region, model, group, share, tenant, traffic_class, price, home = row[: len(_KEYS)]
        key = LineKey(hour_ns, region, model, group, TimeShare(share), tenant, traffic_class, Fraction(price), home)
        yield BillLine(key, Amounts(*row[len(_KEYS) :]))


def _keep_lines(file: sqlite3.Connection, lines: Iterable[BillLine]) -> None:
    marks = ", ".join("?" * (len(_KEYS) + len(AMOUNTS)))
    more = ", ".join(f"{name} = {name} + excluded.{name}" for name in AMOUNTS)
    query = f"insert into bill ({', '.join((*_KEYS, *AMOUNTS))}) values ({marks}) on conflict do update set {more}"
    for line in lines:
        key = line.key
        whose = (key.hour_ns, key.region, key.model, key.group, key.share.value, key.tenant, key.traffic_class)
        file.execute(query, (*whose, str(key.usd_per_hour), key.home, *line.amounts.values()))


def _prune(file: sqlite3.Connection) -> None:
    """Adds up the oldest hours beyond the limits."""
    while True:
        lines, oldest, newest = file.execute(
            "select count(*), min(hour_ns), max(hour_ns) from bill where hour_ns >= 0"
        ).fetchone()
        if not lines or oldest == newest or (lines <= MAX_LINES and newest - oldest < MAX_HOURS * HOUR_NS):
            return
        gone = list(_lines(file, oldest, oldest + 1, [one for one in Dimension if one is not Dimension.HOUR]))
        _keep_lines(file, (replace(line, key=replace(line.key, hour_ns=_PRUNED_NS)) for line in gone))
        file.execute("delete from bill where hour_ns = ?", (oldest,))


def _bill_of(file: sqlite3.Connection, hours: Sequence[int]) -> Bill:
    """From the facts. Replicas have nothing to do with each other, so that those of many facts are billed in parts,
    which bounds the memory."""
    parts = 1 + file.execute("select count(*) from facts").fetchone()[0] // PART_FACTS
    file.create_function("part", 1, lambda replica_id: crc32(replica_id.encode()) % parts, deterministic=True)
    mine = "(replica = '' or part(replica) = ?)"
    query = f"select hour_ns, late, kind, body from facts where {_OPEN} and {mine} order by number"
    unread = 0

    def read(part: int) -> Iterator[tuple[int | None, Fact]]:
        nonlocal unread
        for hour_ns, late, kind, body in file.execute(query, (part,)):
            fact = _fact(kind, body)
            if fact is None:
                unread += hour_ns in hours
            else:
                yield hour_ns if late else None, fact

    found = [bill_of(gathered(read(part)), hours, lambda tariff: _pricing(file, tariff)) for part in range(parts)]
    basis = {key: text for bill in found for key, text in bill.basis.items()}
    return Bill(summed((line.key, line.amounts) for bill in found for line in bill.lines), basis, unread)


def _fact(kind: str, body: bytes) -> Fact | None:
    try:
        return FACTS.read(kind, body)
    except WireError as error:
        log.error("a fact of a bill cannot be read: %s", error)
        return None


def _pricing(file: sqlite3.Connection, tariff: Tariff) -> Pricing:
    """By the tariff's cost file; by tokens where it has none."""
    for (text,) in file.execute("select body from costs where name = ?", (tariff.costs,)):
        try:
            kept = CostFile.model_validate_json(text)
        except ValueError as error:
            log.warning("the work of %s is priced by tokens: %s", tariff.model, error)
            break
        return StepPricing(kept.cost_model(), tariff.step_tokens, f"{kept.model} on {kept.hardware} ({kept.basis})")
    return TokenPricing(tariff.decode_weight)
