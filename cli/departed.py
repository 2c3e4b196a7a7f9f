"""Sentences on what ended in a cell, for `raylane status`, `why` and `explain`, and the lines that `raylane up` prints
on losses."""

import logging
import threading
import time
from collections.abc import Iterable, Mapping
from datetime import datetime
from pathlib import Path

from rich.markup import escape

from cli.console import console
from deployments.cell.departure import Departure, DepartureCause, Lost, MemberKind
from deployments.cell.departure_history import DepartureHistory
from deployments.cell.lifecycle_log import LifecycleTail
from deployments.starts.start import ReplicaStart, StartOutcome
from deployments.store import FILE_NAME

_MIN_CHARS = 8
_HERE = {MemberKind.CONTROLLER: "Serve's controller", MemberKind.DIRECTORY: "the directory"}
"""Of these a cell has one."""


def short_names(ids: Iterable[str]) -> dict[str, str]:
    """A short name for each id: its end, as long as it needs to be no other's. Operators' commands take an id's end for
    the id."""
    ends = {one: one.rpartition("#")[2] or one for one in ids}
    length = _MIN_CHARS
    while length < max(map(len, ends), default=0):
        short = {one: end[-length:] for one, end in ends.items()}
        if len(set(short.values())) == len(short):
            return short
        length += 1
    distinct = len(set(ends.values())) == len(ends)
    return ends if distinct else {one: one for one in ends}


def ids_in(departures: Iterable[Departure]) -> list[str]:
    """The replicas that departures name."""
    named = [one for found in departures if found.kind is MemberKind.REPLICA for one in (found.who, found.replaced_by)]
    return [name for name in named if name]


def who(one: Departure, names: Mapping[str, str], with_model: bool = True) -> str:
    """What ended: `replica 1a2b3c4d of llama`."""
    if one.kind is MemberKind.REPLICA:
        name = names.get(one.who, one.who)
        return f"replica {name} of {one.model}" if with_model and one.model else f"replica {name}"
    return f"gateway {one.who}" if one.kind is MemberKind.GATEWAY else _HERE[one.kind]


def end_of(one: Departure, names: Mapping[str, str], with_model: bool = True) -> str:
    """One sentence: what ended, why, and what was lost with it."""
    fate = "ended as planned" if one.cause.planned else "lost"
    why = one.cause + (f": {one.detail}" if one.detail else "")
    return f"{who(one, names, with_model)} {fate} ({why}){_broken_exchanges(one.lost)}"


def sequel_of(one: Departure, names: Mapping[str, str]) -> str:
    """What came of it: what is there instead, and since when; nothing where nothing is to come."""
    if one.back_unix_s is not None:
        return f"it responded again after {_span(one.back_unix_s - one.at_unix_s)}"
    if one.replaced_by and one.ready_unix_s is not None:
        instead = "another" if one.kind in _HERE else names.get(one.replaced_by, one.replaced_by)
        return f"{instead} was ready after {_span(one.ready_unix_s - one.at_unix_s)}"
    return "" if one.cause is DepartureCause.STOPPED else "nothing in its place yet"


def clock(unix_s: float) -> str:
    """The time of day; with the date where that is another."""
    at = datetime.fromtimestamp(unix_s)
    today = datetime.fromtimestamp(time.time()).date()
    return at.strftime("%H:%M:%S" if at.date() == today else "%m-%d %H:%M:%S")


def _broken_exchanges(lost: Lost) -> str:
    counts = [
        f"{count} {words}" for count, words in ((lost.broken, "broken"), (lost.placed_again, "placed again")) if count
    ]
    return f"; requests: {', '.join(counts)} ({lost.tokens} tokens booked)" if counts else ""


def _span(seconds: float) -> str:
    return f"{max(0.0, seconds):.1f} s"


log = logging.getLogger("raylane.losses")

_EVERY_S = 0.5
SETTLE_S = 2.5
"""By then every gateway has told what it lost."""


class LossReporter:
    """Of the cell with that run directory, from `since_unix_s` on. Planned ends are left out: whoever wanted one knows
    of it."""

    def __init__(self, run_dir: Path, since_unix_s: float) -> None:
        self._tail = LifecycleTail(run_dir / FILE_NAME, since_unix_s)
        self._history = DepartureHistory()
        self._reported: set[tuple[str, float]] = set()
        self._sequels: set[tuple[str, float]] = set()
        self._failing: dict[str, tuple[str, str]] = {}
        """Why the last start of each model failed."""

    def tell_until(self, stop: threading.Event) -> None:
        """Prints until `stop` is set. Nothing raises: no line, and no terminal that is gone, is worth the cluster."""
        while not stop.wait(_EVERY_S):
            try:
                for line in self.lines(time.time()):
                    console.print(line)
            except Exception:
                log.exception("losses are not reported")

    def lines(self, unix_s: float) -> list[str]:
        """What is to be told at that time, and was not told before."""
        started: list[str] = []
        for event in self._tail.news():
            self._history.take(event)
            if isinstance(event, ReplicaStart) and (line := self._start_line(event)):
                started.append(line)
        lost = [departure for departure in self._history.departures().last if not departure.cause.planned]
        names = short_names(dict.fromkeys(ids_in(lost)))
        lines = [
            line
            for departure in lost
            if unix_s - departure.at_unix_s >= SETTLE_S
            for line in self._lines(departure, names)
        ]
        kept = {_key(departure) for departure in lost}
        self._reported &= kept
        self._sequels &= kept
        return started + lines

    def _start_line(self, start: ReplicaStart) -> str:
        """A start that failed, once for each cause, and the first one that goes well again."""
        if start.outcome is StartOutcome.READY:
            if self._failing.pop(start.model, None) is None:
                return ""
            return f"{clock(start.at_unix_s)}  a replica of {escape(start.model)} has started, after others failed"
        why = start.phase, start.cause
        if self._failing.get(start.model) == why:
            return ""
        self._failing[start.model] = why
        said = f"a replica of {start.model} did not start (phase {start.phase}): {start.cause}"
        return f"{clock(start.at_unix_s)}  [red]{escape(said)}[/]"

    def _lines(self, departure: Departure, names: dict[str, str]) -> list[str]:
        key, lines = _key(departure), []
        if key not in self._reported:
            self._reported.add(key)
            lines.append(f"{clock(departure.at_unix_s)}  [red]{escape(end_of(departure, names))}[/]")
        if key not in self._sequels and not departure.awaits:
            self._sequels.add(key)
            after_s = departure.ready_unix_s or departure.back_unix_s or departure.at_unix_s
            what = f"{who(departure, names, with_model=False)}: {sequel_of(departure, names)}"
            lines.append(f"{clock(after_s)}  {escape(what)}")
        return lines


def _key(departure: Departure) -> tuple[str, float]:
    return departure.who, departure.at_unix_s
