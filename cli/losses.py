"""Prints a line for each loss in a cell while `raylane up` holds it, and one for what came in its place."""

import logging
import threading
import time
from pathlib import Path

from rich.markup import escape

from cli.console import console
from cli.departed import clock, end_of, ids_in, sequel_of, short_names, who
from deployments.cell.book import Book
from deployments.cell.departure import Departure
from deployments.cell.life_log import FILE_NAME, LifeTail

log = logging.getLogger("raylane.losses")

_EVERY_S = 0.5
SETTLE_S = 2.5
"""By then every gateway has told what it lost."""


class Losses:
    """Of the cell with that run directory, from `since_unix_s` on. Planned ends are left out: whoever wanted one knows of it."""

    def __init__(self, run_dir: Path, since_unix_s: float) -> None:
        self._tail = LifeTail(run_dir / FILE_NAME, since_unix_s)
        self._book = Book()
        self._told: set[tuple[str, float]] = set()
        self._sequels: set[tuple[str, float]] = set()

    def tell_until(self, stop: threading.Event) -> None:
        """Prints until `stop` is set. Nothing raises: no line, and no terminal that is gone, is worth the cluster."""
        while not stop.wait(_EVERY_S):
            try:
                for line in self.lines(time.time()):
                    console.print(line)
            except Exception:
                log.exception("losses are not told")

    def lines(self, unix_s: float) -> list[str]:
        """What is to be told at that time, and was not told before."""
        for event in self._tail.news():
            self._book.take(event)
        lost = [departure for departure in self._book.departures().last if not departure.cause.planned]
        names = short_names(dict.fromkeys(ids_in(departure.record() for departure in lost)))
        lines = [line for departure in lost if unix_s - departure.at_unix_s >= SETTLE_S for line in self._lines(departure, names)]
        kept = {_key(departure) for departure in lost}
        self._told &= kept
        self._sequels &= kept
        return lines

    def _lines(self, departure: Departure, names: dict[str, str]) -> list[str]:
        key, record, lines = _key(departure), departure.record(), []
        if key not in self._told:
            self._told.add(key)
            lines.append(f"{clock(departure.at_unix_s)}  [red]{escape(end_of(record, names))}[/]")
        if key not in self._sequels and not departure.awaits:
            self._sequels.add(key)
            after_s = departure.ready_unix_s or departure.back_unix_s or departure.at_unix_s
            lines.append(f"{clock(after_s)}  {escape(who(record, names, with_model=False))}: {escape(sequel_of(record, names))}")
        return lines


def _key(departure: Departure) -> tuple[str, float]:
    return departure.who, departure.at_unix_s
