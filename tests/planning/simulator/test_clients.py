"""Clients with lists of endpoints: the order by which they ask, and where simulated ones end, against cells whose
behaviour is known."""

import heapq
import itertools
import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from planning.simulator.clients import AVOID_S, ROUND_S, ClientLists, EndpointList, SimulatedClients, preference

CELLS = ("eu", "us", "ap")
TRIPS = {frozenset(("eu", "us")): 0.04, frozenset(("eu", "ap")): 0.08, frozenset(("us", "ap")): 0.1}
PATIENCE_S = 20.0
HEARTBEAT_S = 15.0


@given(st.lists(st.tuples(st.sampled_from(CELLS), st.floats(0, 100)), max_size=8), st.floats(0, 200))
def test_who_failed_is_asked_last_for_a_while(failures: list[tuple[str, float]], now: float) -> None:
    endpoints = EndpointList(CELLS)
    last_s: dict[str, float] = {}
    for cell, at_s in failures:
        endpoints.failed(cell, at_s)
        last_s[cell] = at_s
    order = endpoints.order(now)
    bad = {cell for cell, at_s in last_s.items() if now - at_s < AVOID_S}
    assert order == [cell for cell in CELLS if cell not in bad] + [cell for cell in CELLS if cell in bad]


def test_the_own_cell_is_preferred_then_the_nearest() -> None:
    assert preference("ap", CELLS, TRIPS) == ["ap", "eu", "us"]
    assert preference("us", CELLS, TRIPS) == ["us", "eu", "ap"]


class Cells:
    """Cells that answer, reject, keep requests waiting or are lost (None), and the clock of all. `asked`: when each
    request came where."""

    def __init__(self, **cells: str | None) -> None:
        self.behaves, self.cut = cells, set[frozenset[str]]()
        self.asked: list[tuple[float, int, str]] = []
        self._calls: list[tuple[float, int, Callable[[float], None]]] = []
        self._made = itertools.count()
        self.now = 0.0
        self.clients: SimulatedClients

    def at(self, time_s: float, call: Callable[[float], None]) -> None:
        heapq.heappush(self._calls, (time_s, next(self._made), call))

    def cell(self, name: str) -> "Cell | None":
        return None if self.behaves[name] is None else Cell(self, name)

    def way_s(self, client: str, name: str) -> float | None:
        link = frozenset((client, name))
        return 0.0 if client == name else None if link in self.cut else TRIPS[link] / 2

    def run(self, until_s: float = math.inf) -> None:
        while self._calls and self._calls[0][0] <= until_s:
            self.now, _, call = heapq.heappop(self._calls)
            call(self.now)


class Cell:
    def __init__(self, cells: Cells, name: str) -> None:
        self._cells, self._name = cells, name

    def arrive(self, index: int, now: float) -> None:
        self._cells.asked.append((now, index, self._name))
        if self._cells.behaves[self._name] == "answers":
            self._cells.clients.has_answer(index)
        elif self._cells.behaves[self._name] == "rejects":
            self._cells.clients.rejected(index, self._name, now)


def clients_of(cells: Cells, *numbers: int, times: list[float] | None = None) -> SimulatedClients:
    """All of eu's clients; by default all requests are sent at second 1."""
    lists = ClientLists(np.array(numbers), PATIENCE_S, HEARTBEAT_S)
    clients = SimulatedClients(cells, lists, ["eu"] * len(numbers), CELLS, TRIPS)
    cells.clients = clients
    clients.begin(times or [1.0] * len(numbers))
    return clients


def test_a_lost_cell_is_followed_by_the_next_and_its_client_keeps_that_in_mind() -> None:
    cells = Cells(eu=None, us="answers", ap="answers")
    clients = clients_of(cells, 0, 0, times=[1.0, 2.0])
    cells.run(1.9)
    cells.behaves["eu"] = "answers"
    cells.run()
    assert cells.asked == [(pytest.approx(1.02), 0, "us"), (pytest.approx(2.02), 1, "us")]
    assert clients.asked == {0: "us", 1: "us"}
    assert not clients.trying


def test_a_rejection_moves_its_own_client_alone() -> None:
    cells = Cells(eu="rejects", us="answers", ap="answers")
    clients_of(cells, 0, 1, 0, times=[1.0, 2.0, 3.0])
    cells.run(1.5)
    cells.behaves["eu"] = "answers"
    cells.run()
    assert [(index, cell) for _, index, cell in cells.asked] == [(0, "eu"), (0, "us"), (1, "eu"), (2, "us")]


def test_a_rejection_by_all_is_the_end() -> None:
    cells = Cells(eu="rejects", us="rejects", ap=None)
    clients = clients_of(cells, 0)
    cells.run()
    assert [cell for _, _, cell in cells.asked] == ["eu", "us"]
    assert not clients.trying
    assert (clients.unanswered, clients.ended) == (set(), set())


def test_nobody_there_is_tried_again_until_the_patience_is_over() -> None:
    cells = Cells(eu=None, us=None, ap=None)
    clients = clients_of(cells, 0, 0)
    cells.run(10.0)
    cells.behaves["ap"] = "answers"
    cells.run(12.0)
    assert {(index, cell) for _, index, cell in cells.asked} == {(0, "ap"), (1, "ap")}
    assert cells.asked[0][0] < 10.0 + ROUND_S + 0.5
    alone = Cells(eu=None, us=None, ap=None)
    clients = clients_of(alone, 0)
    alone.run()
    assert clients.unanswered == {0}
    assert 1.0 + PATIENCE_S <= alone.now < 1.0 + PATIENCE_S + 0.5


def test_a_request_without_a_head_goes_on_when_its_cell_is_lost() -> None:
    cells = Cells(eu="waits", us="answers", ap="answers")
    clients = clients_of(cells, 0)
    cells.run(2.0)
    assert not clients.has_head(0, 2.0)
    assert clients.has_head(0, 1.0 + HEARTBEAT_S), "a heartbeat has sent it"
    cells.behaves["eu"] = None
    clients.broke(0, "eu", 5.0)
    cells.run()
    assert cells.asked[1:] == [(pytest.approx(5.0 + 0.02), 0, "us")]


def test_a_rejection_after_a_heartbeat_ends_the_stream() -> None:
    cells = Cells(eu="waits", us="answers", ap="answers")
    clients = clients_of(cells, 0)
    cells.run(2.0)
    clients.rejected(0, "eu", 1.0 + HEARTBEAT_S)
    cells.run()
    assert clients.ended == {0}
    assert not clients.trying


def test_a_link_that_is_cut_is_tried_until_it_heals() -> None:
    cells = Cells(eu=None, us="answers", ap="answers")
    cells.cut = {frozenset(("eu", "us"))}
    clients_of(cells, 0)
    cells.run(5.0)
    assert not cells.asked
    cells.cut = set()
    cells.run()
    assert [cell for _, _, cell in cells.asked] == ["us"]
    assert cells.asked[0][0] < 5.0 + ROUND_S + 0.05
