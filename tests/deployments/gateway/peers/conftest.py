"""Fixtures of the tests between cells. The loop is uvloop, as it is in a Serve replica."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import uvloop

from tests.deployments.gateway.peers.cells import Cells, known_to
from tests.deployments.gateway.peers.fake_peer import FakePeer
from tests.deployments.gateway.rig import Rig, until


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """The loop of these tests."""
    return {"uvloop": uvloop.new_event_loop}


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """All cells are in one process, and on a busy machine an answer takes longer than a round trip and a quarter of a
    second, and a digest longer than it may. A peer that was given up is not asked again about that request."""
    monkeypatch.setattr("deployments.peering.cell_peering.ANSWER_S", 2.0)
    monkeypatch.setattr("deployments.peering.cell_peering.LOST_AGES", 8.0)


@pytest.fixture
async def make_cells(tmp_path: Path) -> AsyncIterator[Callable[..., Cells]]:
    """Cells that are not started yet; the arguments go into the spec. At the end the books of each must balance."""
    made: list[Cells] = []

    def make(*names: str, **spec: Any) -> Cells:
        cells = Cells(tmp_path, names or ("eu", "us"), **spec)
        made.append(cells)
        return cells

    try:
        yield make
        for cells in made:
            await cells.settled()
    finally:
        for cells in made:
            await cells.stop()


@pytest.fixture
async def cells(make_cells: Callable[..., Cells]) -> Cells:
    """`eu` without a replica, so that its requests go to `us`, which has one."""
    cells = make_cells()
    await cells.start("eu", engines=0)
    await cells.start("us")
    await cells.met()
    return cells


@pytest.fixture
async def fake(make_cells: Callable[..., Cells]) -> AsyncIterator[tuple[Rig, FakePeer]]:
    """`eu` without a replica, and a peer `us` that does what the test wants."""
    cells = make_cells(gateway={"heartbeat_s": 0.0})
    home = await cells.start("eu", engines=0)
    peer = await FakePeer(cells.spec_of("us"), "us", cells.spec_of("us").gateway.port).start()
    await until(lambda: all(known_to(home).values()))
    yield home, peer
    await peer.stop()
