"""The book of a cell's departures: which lives began and ended, and what came in whose place. Pure: events come in, in
the order in which they were heard of, and the same events give the same book.

The first report of a departure sets its time and cause. Later reports by others add what they lost.
What comes in its place is the next of its kind and model that began to serve after its end, and that came in no other's
place. Both may be heard of in either order.
"""

from collections import OrderedDict, deque
from collections.abc import Iterable
from dataclasses import replace

from deployments.cell.departure import (
    Departure,
    DepartureCause,
    Departures,
    DepartureTally,
    Ended,
    Event,
    Lost,
    MemberKind,
    Ready,
)
from deployments.starts.start import ReplicaStart

KEPT = 64
"""So many departures are kept..."""
_KNOWN = 16_384
"""As many beginnings of lives are kept, to recognise one that is reported again."""
_SPARE = 64
_Key = tuple[MemberKind, str]


class DepartureHistory:
    """`take` says whether an event was news; a start is none."""

    def __init__(self) -> None:
        self._departures: OrderedDict[int, Departure] = OrderedDict()
        self._number = 0
        self._last: dict[_Key, int] = {}
        """The number of each one's last departure: who came back may end again."""
        self._reported_by: dict[_Key, set[str]] = {}
        self._known: OrderedDict[_Key, Ready] = OrderedDict()
        self._spare: deque[Ready] = deque(maxlen=_SPARE)
        self._tallies: dict[tuple[MemberKind, str, DepartureCause], DepartureTally] = {}

    def take(self, event: Event) -> bool:
        if isinstance(event, ReplicaStart):
            return False
        return self._ready(event) if isinstance(event, Ready) else self._ended(event)

    def get(self, kind: MemberKind, who: str) -> Departure | None:
        number = self._last.get((kind, who))
        return None if number is None else self._departures[number]

    def living(self, kind: MemberKind) -> list[Ready]:
        """Those of a kind that began and have not ended, or are back."""
        return [
            ready
            for key, ready in self._known.items()
            if key[0] is kind and ((ended := self.get(*key)) is None or ended.back_unix_s is not None)
        ]

    def departures(self) -> Departures:
        return Departures(tuple(self._departures.values()), tuple(self._tallies.values()))

    def _ready(self, event: Ready) -> bool:
        key = event.kind, event.who
        departure = self.get(*key)
        if departure is not None:
            if departure.cause.planned or departure.back_unix_s is not None:
                return False
            self._departures[self._last[key]] = replace(departure, back_unix_s=event.at_unix_s)
            return True
        if key in self._known:
            return False
        self._known[key] = event
        if len(self._known) > _KNOWN:
            self._known.popitem(last=False)
        for number, other in self._departures.items():
            if _fits(other, event):
                self._departures[number] = _replaced(other, event)
                return True
        self._spare.append(event)
        return True

    def _ended(self, event: Ended) -> bool:
        key = event.kind, event.who
        before = self.get(*key)
        if before is not None and (before.back_unix_s is None or event.at_unix_s < before.back_unix_s):
            return self._reported_again(key, before, event)
        known = self._known.get(key)
        model, pid = event.model or (known.model if known else ""), event.pid or (known.pid if known else 0)
        departure = Departure(
            *key, event.at_unix_s, event.cause, model, pid, event.reported_by, event.lost, event.detail
        )
        self._reported_by[key] = {event.reported_by}
        self._count(departure, 1, event.lost)
        self._spare = deque((one for one in self._spare if (one.kind, one.who) != key), _SPARE)
        for ready in self._spare:
            if _fits(departure, ready):
                self._spare.remove(ready)
                departure = _replaced(departure, ready)
                break
        self._keep(key, departure)
        return True

    def _reported_again(self, key: _Key, departure: Departure, event: Ended) -> bool:
        """Another one tells of an end that is known."""
        if event.reported_by in self._reported_by[key]:
            return False
        self._reported_by[key].add(event.reported_by)
        if event.lost == Lost():
            return False
        self._departures[self._last[key]] = replace(departure, lost=departure.lost.plus(event.lost))
        self._count(departure, 0, event.lost)
        return True

    def _keep(self, key: _Key, departure: Departure) -> None:
        self._number += 1
        self._departures[self._number] = departure
        self._last[key] = self._number
        if len(self._departures) > KEPT:
            number, oldest = self._departures.popitem(last=False)
            gone = oldest.kind, oldest.who
            if self._last[gone] == number:
                for kept in (self._last, self._reported_by, self._known):
                    kept.pop(gone, None)

    def _count(self, departure: Departure, count: int, lost: Lost) -> None:
        key = departure.kind, departure.model, departure.cause
        before = self._tallies.get(key, DepartureTally(*key, 0, Lost()))
        self._tallies[key] = DepartureTally(*key, before.count + count, before.lost.plus(replace(lost, digests=())))


def _fits(departure: Departure, ready: Ready) -> bool:
    alike = departure.kind is ready.kind and departure.model == ready.model
    return alike and departure.awaits and departure.at_unix_s <= ready.at_unix_s


def _replaced(departure: Departure, ready: Ready) -> Departure:
    return replace(departure, replaced_by=ready.who, ready_unix_s=ready.at_unix_s)


def departures_in(events: Iterable[Event]) -> list[Departure]:
    """All departures that a life log tells of, oldest first: of one cell after the other that was brought up under that
    name. Nothing of a later one comes in the place of what an earlier one had."""
    found: list[Departure] = []
    history = DepartureHistory()
    for event in events:
        if isinstance(event, Ready) and event.kind is MemberKind.DIRECTORY and history.living(MemberKind.DIRECTORY):
            found += history.departures().last
            history = DepartureHistory()
        history.take(event)
    return [*found, *history.departures().last]
