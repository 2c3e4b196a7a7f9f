"""Fixtures of the tests between cells."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.deployments.gateway.peers.cells import Cells, MakeCells
from tests.deployments.gateway.peers.fake_peer import FakePeer, beside_fake
from tests.deployments.gateway.rig import Rig


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """All cells are in one process, and on a busy machine an answer takes longer than a round trip and a quarter of a
    second, and a digest longer than it may. A peer that was given up is not asked again about that request."""
    monkeypatch.setattr("deployments.peering.cell_peering.ANSWER_S", 2.0)
    monkeypatch.setattr("deployments.peering.cell_peering.LOST_AGES", 8.0)


@pytest.fixture
async def make_cells(tmp_path: Path) -> AsyncIterator[MakeCells]:
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
async def cells(make_cells: MakeCells) -> Cells:
    """`eu` without a replica, and `us` with one."""
    cells = make_cells()
    await cells.pair()
    return cells


@pytest.fixture
async def fake(make_cells: MakeCells) -> AsyncIterator[tuple[Rig, FakePeer]]:
    """`eu` without a replica, and a peer `us` that does what the test wants."""
    home, peer = await beside_fake(make_cells(gateway={"heartbeat_s": 0.0}))
    yield home, peer
    await peer.stop()
