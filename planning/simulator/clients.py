"""Clients that know the endpoints of several cells (docs/clients.md): which they ask first, and which next.

`EndpointList` is pure: live drills of the tests and simulated clients ask by it. `SimulatedClients` sends the
requests of a simulation, driven by `cells.py`.

    the cell                                            its client
    cannot be reached, or breaks off before the head    asks the next endpoint, and this one last for `AVOID_S`
    rejects it for want of capacity (503)               the same; with no endpoint left, the request is rejected
    breaks off after the head                           has lost the answer
    none can be reached                                 begins again after `ROUND_S`, until its patience is over

A gateway sends the head with the first byte of the answer, or with a heartbeat, whichever comes first.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

AVOID_S = 30.0
"""So long an endpoint that failed is asked last: as in `docs/examples/openai_failover.py`."""
ROUND_S = 0.2
"""Between two rounds through endpoints of which none can be reached."""
CLIENTS = 20
"""Clients of each region, which send its requests in turn. Each has a list of its own: a rejection moves one of them,
and not all."""


class EndpointList:
    """The cells that one client knows, in its order of preference, and which of them failed."""

    def __init__(self, cells: Sequence[str]) -> None:
        self._cells = tuple(cells)
        self._failed_s: dict[str, float] = {}

    def order(self, now: float) -> list[str]:
        """In which order a request that is sent now tries them."""
        return sorted(self._cells, key=lambda cell: now - self._failed_s.get(cell, -math.inf) < AVOID_S)

    def failed(self, cell: str, now: float) -> None:
        """It could not be reached, broke off before an answer, or answered 5xx."""
        self._failed_s[cell] = now


def preference(home: str, cells: Sequence[str], rtt_s: Mapping[frozenset[str], float]) -> list[str]:
    """The region's own cell, then the others by round trip."""
    return sorted(cells, key=lambda cell: -1.0 if cell == home else rtt_s[frozenset((home, cell))])


@dataclass(frozen=True, slots=True)
class ClientLists:
    """Who sends the requests of a simulation. `numbers`: by request, the number of its client among those of its home.
    `patience_s`: so long a client goes on with one request. `heartbeat_s`: a gateway sends the head of an answer after
    so long at the latest (0: with its first byte)."""

    numbers: NDArray[np.int64]
    patience_s: float
    heartbeat_s: float


class AskedCell(Protocol):
    """A cell, for those who ask it."""

    def arrive(self, index: int, now: float) -> None:
        """A request comes."""
        ...


class Endpoints(Protocol):
    """The cells, as their clients reach them. See `CellsSimulator`."""

    def at(self, time_s: float, call: Callable[[float], None]) -> None:
        """Calls `call` at that time."""
        ...

    def cell(self, name: str) -> AskedCell | None:
        """The cell of that name; None: it is lost."""
        ...

    def way_s(self, client: str, name: str) -> float | None:
        """From clients of one region to the cell of another, one way (seconds); None: the link is cut."""
        ...


@dataclass(slots=True)
class _Try:
    """A request that is not answered yet. `left`: endpoints of this round that were not asked yet."""

    sent_s: float
    left: list[str]
    asked: str = ""
    asked_s: float = math.inf
    rejected: bool = False


class SimulatedClients:
    """All clients of one simulation. `homes`: by request, the name of the region of its client."""

    def __init__(
        self,
        cells: Endpoints,
        lists: ClientLists,
        homes: Sequence[str],
        names: Sequence[str],
        rtt_s: Mapping[frozenset[str], float],
    ) -> None:
        self._cells, self._settings, self._homes = cells, lists, homes
        self._numbers = lists.numbers.tolist()
        self._orders = {name: preference(name, names, rtt_s) for name in names}
        self._lists: dict[tuple[str, int], EndpointList] = {}
        self._open: dict[int, _Try] = {}
        self.asked: dict[int, str] = {}
        """Which cell each request went to last."""
        self.unanswered: set[int] = set()
        """Requests for which no cell could be reached."""
        self.ended: set[int] = set()
        """Requests that were rejected after the head of their answer."""

    @property
    def trying(self) -> bool:
        """Whether any request waits for an endpoint that takes it."""
        return bool(self._open)

    def begin(self, arrived_s: Sequence[float]) -> None:
        """From now on requests are sent at their times."""
        for index, at_s in enumerate(arrived_s):
            self._cells.at(at_s, lambda now, index=index: self._send(index, now))  # type: ignore[misc]

    def _send(self, index: int, now: float) -> None:
        self._open[index] = _Try(now, self._list(index).order(now))
        self._next(index, now)

    def has_answer(self, index: int) -> None:
        """The request's answer has begun: from now on it is its client's affair how it ends."""
        self._open.pop(index, None)

    def has_head(self, index: int, now: float) -> bool:
        """Whether its client has got the head of an answer."""
        one, heartbeat_s = self._open.get(index), self._settings.heartbeat_s
        return one is None or 0 < heartbeat_s <= now - one.asked_s

    def rejected(self, index: int, cell: str, now: float) -> None:
        """A cell has rejected the request: with a status where nothing was sent before, else in its stream."""
        if self.has_head(index, now):
            self._open.pop(index, None)
            self.ended.add(index)
        else:
            self._cross(index, now, lambda then: self._failed(index, cell, True, then))

    def broke(self, index: int, cell: str, now: float) -> None:
        """The cell is lost, and the request has no head yet."""
        self._cells.at(
            now, lambda then: self._cross(index, then, lambda later: self._failed(index, cell, False, later))
        )

    def _failed(self, index: int, cell: str, rejected: bool, now: float) -> None:
        """The client learns that the cell does not answer the request."""
        one = self._open[index]
        one.rejected |= rejected
        self._list(index).failed(cell, now)
        self._next(index, now)

    def _next(self, index: int, now: float) -> None:
        one = self._open[index]
        if one.left:
            one.asked = self.asked[index] = one.left.pop(0)
            self._cross(index, now, lambda then: self._reach(index, then))
        elif one.rejected:
            del self._open[index]
        elif not self._gives_up(index, now):
            self._cells.at(now + ROUND_S, lambda then: self._begin_round(index, then))

    def _begin_round(self, index: int, now: float) -> None:
        self._open[index].left = self._list(index).order(now)
        self._next(index, now)

    def _reach(self, index: int, now: float) -> None:
        """The request reaches its endpoint, or nobody is there."""
        one = self._open[index]
        cell = self._cells.cell(one.asked)
        if cell is not None:
            one.asked_s = now
            cell.arrive(index, now)
        else:
            self._cross(index, now, lambda then: self._failed(index, one.asked, False, then))

    def _cross(self, index: int, now: float, call: Callable[[float], None]) -> None:
        """`call` when something that leaves now has crossed the link between the client and the cell that it asks. A
        link that is cut is tried again and again, as by TCP."""
        way_s = self._cells.way_s(self._homes[index], self._open[index].asked)
        if way_s == 0.0:
            call(now)
        elif way_s is not None:
            self._cells.at(now + way_s, call)
        elif not self._gives_up(index, now):
            self._cells.at(now + ROUND_S, lambda then: self._cross(index, then, call))

    def _gives_up(self, index: int, now: float) -> bool:
        """Whether the client's patience is over; then that is the request's end."""
        if now < self._open[index].sent_s + self._settings.patience_s:
            return False
        del self._open[index]
        self.unanswered.add(index)
        return True

    def _list(self, index: int) -> EndpointList:
        home, number = self._homes[index], self._numbers[index]
        key = home, number
        if key not in self._lists:
            self._lists[key] = EndpointList(self._orders[home])
        return self._lists[key]
