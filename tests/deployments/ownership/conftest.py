"""Several gateways of one cell, in one loop, with real HTTP between them, their engines and their clients. No Ray.
And a dispatcher alone."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from pathlib import Path

import pytest
import uvloop

from deployments.cell.directory import Directory
from deployments.gateway.flow import EndCause
from deployments.gateway.gateway import Gateway
from deployments.ownership.dispatcher import Dispatcher
from deployments.ownership.lane_owner import LaneOwner
from deployments.scheduling import SchedulingPolicy
from tests.deployments.gateway.fake_engine import FakeEngine
from tests.deployments.gateway.rig import SECRET, Handle, Rig, free_port, make_spec, until
from tests.deployments.ownership.dispatcher_rig import books, make_dispatcher
from tests.deployments.ownership.lane_owner_rig import Submitter, facts


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """The loop of these tests."""
    return {"uvloop": uvloop.new_event_loop}


class Cell:
    """Gateways with one directory and the same engines. Each has a client port of its own, so that a test can choose
    whom it asks."""

    def __init__(self, directory: Directory) -> None:
        self.directory = directory
        self.rigs: list[Rig] = []
        self.engines: list[FakeEngine] = []
        self.crashed: list[Rig] = []

    async def add(self, engine: FakeEngine | None = None) -> FakeEngine:
        """Starts an engine, and waits until every gateway has it."""
        engine = await (engine or FakeEngine()).start()
        self.engines.append(engine)
        await self.directory.register(engine.facts)
        await until(lambda: all(rig.uses(engine) for rig in self.rigs))
        return engine

    @property
    def owner(self) -> Rig:
        """The gateway that owns the model; there must be exactly one."""
        (found,) = [rig for rig in self.rigs if rig.dispatcher.own is not None]
        return found

    @property
    def other(self) -> Rig:
        """One that does not."""
        return next(rig for rig in self.rigs if rig.dispatcher.own is None)

    async def crash(self, rig: Rig) -> None:
        """Ends a gateway as a killed process does: every connection of its breaks at once, it says goodbye to
        nobody."""
        self.rigs.remove(rig)
        self.crashed.append(rig)
        gateway = rig.gateway
        for task in (*gateway._tasks, gateway._joining, *gateway.feeds._tasks):
            if task is not None:
                task.cancel()
        for server in (gateway._server, gateway._cell_server):
            for listener in server._server.servers:
                listener.close()
            for connection in list(server._server.server_state.connections):
                connection.transport.abort()
        for owner_tracker in gateway._owner_trackers.values():
            owner_tracker.close()
        gateway.service.flows.abort_all(EndCause.CLIENT_GONE)
        await gateway._session.close()
        gateway._journal.close()

    async def settled(self) -> None:
        """Nothing is left of any request, and every owner's books balance."""
        for rig in self.rigs:
            await rig.settled()
        assert not [name for engine in self.engines for name in engine.twice]
        assert not any(engine.running for engine in self.engines)

    async def stop(self) -> None:
        """Ends everything."""
        for rig in self.rigs:
            await rig.stop()
        for engine in self.engines:
            await engine.kill()


MakeCell = Callable[..., Awaitable[Cell]]


@pytest.fixture
async def make_cell(tmp_path: Path) -> AsyncIterator[MakeCell]:
    """Starts that many gateways and engines. At the end the books must balance."""
    cells: list[Cell] = []

    async def make(gateways: int = 2, engines: int = 1, **spec: object) -> Cell:
        cell = Cell(Directory(SECRET, gateways))
        cells.append(cell)
        for number in range(gateways):
            port = free_port()
            options = {"replicas": gateways, "lame_duck_s": 0.2, "drain_s": 60.0, **spec}
            cluster = make_spec(port, {}, {}, **options)  # type: ignore[arg-type]
            folder = tmp_path / str(number)
            folder.mkdir()
            gateway = Gateway(cluster, cluster.regions[0], SECRET, folder)
            await gateway.start(Handle(cell.directory))
            cell.rigs.append(Rig(gateway, cell.directory, port, folder))
        for _ in range(engines):
            await cell.add()
        return cell

    try:
        yield make
        for cell in cells:
            await cell.settled()
    finally:
        for cell in cells:
            await cell.stop()


@pytest.fixture
async def dispatcher() -> AsyncIterator[Dispatcher]:
    """A dispatcher whose books must balance in the end."""
    dispatcher = make_dispatcher()
    yield dispatcher
    for _ in range(3):
        await asyncio.sleep(0)
    snapshot = books(dispatcher)
    assert snapshot.placed + snapshot.adopted == sum(snapshot.endings.values())
    assert sum(lane.waiting for lane in snapshot.lanes) == 0
    assert not len(dispatcher)
    assert dispatcher.own is not None
    assert not [*dispatcher.own.records]


@pytest.fixture
def submitter() -> Submitter:
    return Submitter()


@pytest.fixture
async def owner() -> AsyncIterator[LaneOwner]:
    """An owner with one replica."""
    made = LaneOwner(SchedulingPolicy(max_waiting=3))
    made.replicas.up(facts())
    made.replica_up(facts())
    yield made
    made.close()
