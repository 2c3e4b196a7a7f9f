"""How people are told of what ended in a cell: in `raylane status`, on the terminal of `raylane up`, and by `raylane explain`."""

import time
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

_LEAST_CHARS = 8
_HERE = {"gateway": "gateway", "controller": "Serve's controller", "directory": "the directory"}


def short_names(ids: Iterable[str]) -> dict[str, str]:
    """A short name for each id: its end, as long as it needs to be no other's. Operators' commands take an id's end for the id."""
    ends = {one: one.rpartition("#")[2] or one for one in ids}
    length = _LEAST_CHARS
    while length < max(map(len, ends), default=0):
        short = {one: end[-length:] for one, end in ends.items()}
        if len(set(short.values())) == len(short):
            return short
        length += 1
    distinct = len(set(ends.values())) == len(ends)
    return ends if distinct else {one: one for one in ends}


def ids_in(records: Iterable[Mapping[str, Any]]) -> list[str]:
    """The replicas that records of departures name."""
    named = [name for one in records if one["kind"] == "replica" for name in (one["who"], one["replaced_by"])]
    return [name for name in named if name]


def who(record: Mapping[str, Any], names: Mapping[str, str], with_model: bool = True) -> str:
    """What ended: `replica 1a2b3c4d of llama`."""
    if record["kind"] == "replica":
        name = names.get(record["who"], record["who"])
        return f"replica {name} of {record['model']}" if with_model and record["model"] else f"replica {name}"
    return f"gateway {record['who']}" if record["kind"] == "gateway" else _HERE[record["kind"]]


def end_of(record: Mapping[str, Any], names: Mapping[str, str], with_model: bool = True) -> str:
    """One sentence: what ended, why, and what was lost with it."""
    fate = "ended as planned" if record["planned"] else "lost"
    why = record["cause"] + (f": {record['detail']}" if record["detail"] else "")
    return f"{who(record, names, with_model)} {fate} ({why}){_harm(record)}"


def sequel_of(record: Mapping[str, Any], names: Mapping[str, str]) -> str:
    """What came of it: what is there instead, and since when; nothing where nothing is to come."""
    at = record["at_unix_s"]
    if record["back_unix_s"] is not None:
        return f"it spoke again after {_span(record['back_unix_s'] - at)}"
    if record["replaced_by"]:
        instead = names.get(record["replaced_by"], record["replaced_by"]) if record["kind"] in ("replica", "gateway") else "another"
        return f"{instead} was ready after {_span(record['ready_unix_s'] - at)}"
    return "" if record["cause"] == "stopped" else "nothing in its place yet"


def clock(unix_s: float) -> str:
    """The time of day; with the date where that is another."""
    at = datetime.fromtimestamp(unix_s)
    today = datetime.fromtimestamp(time.time()).date()
    return at.strftime("%H:%M:%S" if at.date() == today else "%m-%d %H:%M:%S")


def _harm(record: Mapping[str, Any]) -> str:
    lost = record["lost"]
    counts = [f"{lost[key]} {words}" for key, words in (("broken", "broken"), ("placed_again", "placed again")) if lost[key]]
    if not counts:
        return ""
    return f"; requests: {', '.join(counts)} ({lost['tokens']} tokens booked)"


def _span(seconds: float) -> str:
    return f"{max(0.0, seconds):.1f} s"
