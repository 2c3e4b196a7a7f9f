"""Dispatcher, owner and channel together, over connections that break, delay and repeat, while owners, replicas and
clients come and go.

Whatever happens: an engine's id reaches an engine once; each request ends once, at its submitter; and when all is quiet
no lease stands that no replica runs, and nothing waits that no client waits for.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Any
from unittest import mock

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

from deployments.ownership import channel, dispatcher, lane_owner, owner_tracker
from deployments.ownership.takeover import Running
from tests.deployments.ownership.shaky_cell import Cell, Engine, Gateway
from tests.deployments.ownership.virtual_time import VirtualLoop, virtual_time

MAX_QUIET_S = 45.0
"""Longer than any request may wait, and than any owner takes to notice what it lost."""


class Failures(logging.Handler):
    """A channel survives a fault of the owner's, by breaking. Here it counts as one."""

    def __init__(self, errors: list[dict[str, Any]]) -> None:
        super().__init__()
        self._errors = errors

    def emit(self, record: logging.LogRecord) -> None:
        """Takes a line of the log."""
        if any(isinstance(argument, AssertionError | KeyError) for argument in record.args or ()):
            self._errors.append({"message": record.getMessage()})


class ShakyCell(RuleBasedStateMachine):
    """See the module's docstring."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = VirtualLoop()
        self.errors: list[dict[str, Any]] = []
        self.loop.set_exception_handler(lambda loop, context: self.errors.append(context))
        self.handler = Failures(self.errors)
        logging.getLogger("raylane.ownership").addHandler(self.handler)
        self.stack = virtual_time(self.loop, owner_tracker, channel, dispatcher, lane_owner)
        self.stack.__enter__()
        self.cell: Cell

        async def claim(*arguments: Any) -> list[Running]:
            return await self.cell.claim(*arguments)

        self.claims = mock.patch.object(owner_tracker, "claim", claim)
        self.claims.start()

    @initialize(
        seed=st.integers(0, 1 << 32),
        gateways=st.integers(2, 3),
        doubles=st.sampled_from([0.0, 0.3]),
        breaks=st.sampled_from([0.0, 0.1, 0.3]),
        deaf=st.booleans(),
    )
    def begin(self, seed: int, gateways: int, doubles: float, breaks: float, deaf: bool) -> None:
        def make() -> None:
            self.cell = Cell(self.loop, seed, gateways, doubles, breaks)

        self.passes(1.5, make)
        self.cell.deaf = deaf

    def passes(self, seconds: float, act: Callable[[], None] = lambda: None) -> None:
        """Does something in the loop, then lets so much time pass."""

        async def go() -> None:
            act()
            await asyncio.sleep(seconds)

        self.loop.run_until_complete(go())
        assert not self.errors, self.errors[0]
        assert not [name for name, times in self.cell.reached.items() if times > 1], (
            "an engine's id reaches an engine once"
        )

    def gateway(self, data: st.DataObject) -> Gateway:
        return self.cell.gateways[data.draw(st.integers(0, len(self.cell.gateways) - 1), label="gateway")]

    def engine(self, data: st.DataObject) -> Engine:
        return data.draw(st.sampled_from([one for one in self.cell.engines.values() if one.alive]), label="engine")

    @rule(seconds=st.sampled_from([0.0, 0.01, 0.1, 0.5, 3.0]))
    def time_passes(self, seconds: float) -> None:
        self.passes(seconds)

    @rule(data=st.data(), count=st.integers(1, 4), wait_s=st.sampled_from([0.3, 5.0, 20.0]))
    def clients_ask(self, data: st.DataObject, count: int, wait_s: float) -> None:
        gateway = self.gateway(data)

        def ask() -> None:
            for _ in range(count):
                self.cell.submit(gateway, wait_s)

        self.passes(data.draw(st.sampled_from([0.0, 0.001, 0.05]), label="then"), ask)

    @precondition(lambda self: self.cell.clients)
    @rule(data=st.data())
    def a_client_leaves(self, data: st.DataObject) -> None:
        client = self.cell.clients[data.draw(st.sampled_from(sorted(self.cell.clients)))]
        self.passes(0.0, lambda: client.cancel() and None)

    @rule(data=st.data())
    def a_channel_breaks(self, data: st.DataObject) -> None:
        if self.cell.channels:
            self.passes(0.0, self.cell.channels[data.draw(st.integers(-min(4, len(self.cell.channels)), -1))].cut)

    @rule()
    def all_channels_break(self) -> None:
        for one in list(self.cell.channels):  # a channel that breaks may open the next one at once
            self.passes(0.0, one.cut)

    @rule()
    def the_directory_turns_deaf_or_listens(self) -> None:
        self.cell.deaf = not self.cell.deaf

    @rule()
    def the_directory_restarts(self) -> None:
        self.cell.restart_directory()

    @rule(data=st.data())
    def a_gateway_is_given_up(self, data: st.DataObject) -> None:
        name = self.gateway(data).name
        self.passes(0.0, lambda: self.cell.gateways[0].doubt(name))

    @precondition(lambda self: len(self.cell.gateways) > 1)
    @rule(data=st.data())
    def a_gateway_dies(self, data: st.DataObject) -> None:
        gateway = self.gateway(data)
        self.passes(0.0, lambda: self.cell.crash(gateway))
        self.loop.call_later(2.0, self.cell.add_gateway)

    @rule()
    def a_replica_comes(self) -> None:
        if sum(engine.alive for engine in self.cell.engines.values()) < 3:
            self.passes(0.0, self.cell.add_engine)

    @precondition(lambda self: any(engine.alive for engine in self.cell.engines.values()))
    @rule(data=st.data(), how=st.sampled_from(["dies", "drains", "is unresponsive"]))
    def a_replica_goes(self, data: st.DataObject, how: str) -> None:
        engine = self.engine(data)
        act = {"dies": self.cell.kill, "drains": self.cell.drain, "is unresponsive": self.cell.falls_unresponsive}[how]
        self.passes(0.0, lambda: act(engine))

    def teardown(self) -> None:
        try:
            if hasattr(self, "cell"):
                self.settles()
        finally:
            logging.getLogger("raylane.ownership").removeHandler(self.handler)
            self.claims.stop()
            self.stack.__exit__(None, None, None)
            for task in asyncio.all_tasks(self.loop):
                task.cancel()
            self.loop.run_until_complete(asyncio.sleep(0.1))
            self.loop.close()

    def settles(self) -> None:
        """Everything works again, nobody asks any more: all comes to an end, and nothing is left."""
        cell = self.cell
        cell.deaf, cell.breaks = False, 0.0
        self.passes(MAX_QUIET_S, cell.add_engine)
        assert {name: task for name, task in cell.clients.items() if not task.done()} == {}, "nothing hangs"
        ends = {task.result() for task in cell.clients.values() if not task.cancelled()}
        assert ends <= {"answered", "rejected", "expired", "failed", "cancelled"}
        for one in cell.gateways:
            assert not len(one.dispatcher), "no pending request is left"
        (owner,) = [one.dispatcher.own for one in cell.gateways if one.dispatcher.own is not None]
        snapshot = owner.snapshot()
        assert snapshot.placed + snapshot.adopted == sum(snapshot.endings.values()), "no lease is left"
        assert not [*owner.records], owner.records.counts
        assert sum(lane.waiting for lane in snapshot.lanes) == 0, "nothing waits"
        assert all(replica.leases == replica.kv_tokens == 0 for replica in snapshot.replicas)
        assert not any(engine.running for engine in cell.engines.values())


TestShakyCell = pytest.mark.whole(ShakyCell.TestCase)
TestShakyCell.settings = settings(max_examples=15, stateful_step_count=25, deadline=None)


@pytest.mark.whole
def test_many_shaky_cells() -> None:
    run_state_machine_as_test(ShakyCell, settings=settings(max_examples=40, stateful_step_count=25, deadline=None))


@pytest.mark.long
@pytest.mark.timeout(900)
def test_very_many_shaky_cells() -> None:
    run_state_machine_as_test(ShakyCell, settings=settings(max_examples=1_000, stateful_step_count=40, deadline=None))
