"""Counts of traffic, as rows of the cell's store (`deployments/store.py`): what clients sent in each stretch, and for
how long gateways counted in it.

What a gateway delivers is added to what is there, once, in one transaction. The newest stretches are kept, three days
of minutes and four hundred of hours; of more than `MAX_COUNTS` rows the oldest tenth of them goes.
"""

import logging
import sqlite3
from pathlib import Path

from deployments.store import reader
from deployments.traffic.counts import Period, Stream, Stretches, TrafficCounts
from deployments.wire import WireError, decoder, encode

log = logging.getLogger("raylane.traffic")

KEPT = {Period.MINUTE: 3 * 1_440, Period.HOUR: 400 * 24}
"""So many stretches in which somebody counted, however old: a clock that is ahead for a while must delete nothing."""
MAX_COUNTS = 500_000
"""Some 250 MB."""
_REMEMBERED = 1_000
"""So many gateways' last deliveries are known."""
_KEY = "period = ? and begin = ? and model = ? and class = ? and region = ? and tenant = ?"
_counts = decoder(TrafficCounts)


def add_traffic(file: sqlite3.Connection, gateway_id: str, delivery: int, new: Stretches) -> None:
    """Adds what a gateway counted; a `delivery` with a number that it had before changes nothing."""
    known = file.execute("select number from deliveries where gateway = ?", (gateway_id,)).fetchone()
    if known is not None and delivery <= known[0]:
        return
    file.execute("insert or replace into deliveries values (?, ?)", (gateway_id, delivery))
    file.execute("delete from deliveries where rowid <= (select max(rowid) from deliveries) - ?", (_REMEMBERED,))
    for (period, begin, stream), counts in new.counts.items():
        key = (int(period), begin, stream.model, stream.traffic_class, stream.region, stream.tenant)
        summed = TrafficCounts()  # `new` stays as it is: it comes again where the change fails
        for (body,) in file.execute(f"select body from traffic where {_KEY}", key).fetchall():
            _add(body, summed)
        summed.merge(counts)
        file.execute("insert or replace into traffic values (?, ?, ?, ?, ?, ?, ?)", (*key, encode(summed)))
    for (period, begin), seconds in new.seconds.items():
        file.execute(
            "insert into watched values (?, ?, ?) on conflict do update set seconds = seconds + excluded.seconds",
            (int(period), begin, seconds),
        )
    _forget(file)


def traffic_in(
    file: sqlite3.Connection, period: Period, from_unix_s: float = 0.0, *, tenants: bool = False
) -> Stretches:
    """The stretches of one period that begin at that time or later. Without `tenants`, these are counted together."""
    found, since = Stretches(), (int(period), from_unix_s)
    query = "select begin, model, class, region, tenant, body from traffic where period = ? and begin >= ?"
    for begin, model, traffic_class, region, tenant, body in file.execute(query, since):
        stream = Stream(model, traffic_class, region, tenant if tenants else "")
        _add(body, found.of(period, begin, stream))
    for begin, seconds in file.execute("select begin, seconds from watched where period = ? and begin >= ?", since):
        found.seconds[period, begin] = seconds
    return found


def read_traffic(path: Path, period: Period) -> Stretches:
    """As `traffic_in`, of a store, whether its cell runs or not. Raises OSError; CellStoreError where it is none."""
    with reader(path) as file:
        return traffic_in(file, period)


def _add(body: bytes, to: TrafficCounts) -> None:
    try:
        to.merge(_counts(body))
    except WireError as error:
        log.error("counts of traffic are left out: %s", error)


def _forget(file: sqlite3.Connection) -> None:
    is_full = file.execute("select count(*) from traffic").fetchone()[0] > MAX_COUNTS
    for period, kept in KEPT.items():
        if is_full:
            kept = file.execute("select count(*) * 9 / 10 from watched where period = ?", (int(period),)).fetchone()[0]
        query = "select begin from watched where period = ? order by begin desc limit 1 offset ?"
        for (begin,) in file.execute(query, (int(period), kept)).fetchall():
            for table in ("traffic", "watched"):
                file.execute(f"delete from {table} where period = ? and begin <= ?", (int(period), begin))
