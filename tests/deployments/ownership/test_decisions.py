"""The decision log of a running gateway: what its scheduler decided replays, over a change of owner."""

import asyncio
from pathlib import Path

import pytest

from tests.commands import ran
from tests.deployments.gateway.fake_engine import DONE, event, pieces
from tests.deployments.gateway.rig import ASK
from tests.deployments.ownership.conftest import MakeCell


@pytest.mark.whole
async def test_what_gateways_decided_replays(make_cell: MakeCell, tmp_path: Path) -> None:
    folder = tmp_path / "decisions"
    cell = await make_cell(engines=2, decision_log=str(folder))
    for engine in cell.engines:
        engine.behave = pieces(event(), 0.01, DONE)

    async def load() -> None:
        answers = await asyncio.gather(*(rig.ask({**ASK, "stream": True}) for rig in cell.rigs for _ in range(30)))
        assert {status for status, _ in answers} == {200}

    await load()
    stopping = cell.owner
    cell.rigs.remove(stopping)
    await stopping.gateway.stop()
    await load()
    await cell.settled()
    for rig in cell.rigs:
        for owner_tracker in rig.gateway._owner_trackers.values():
            owner_tracker.close()
    logs = sorted(folder.glob("*.log"))
    assert [log.name.split("-gateway")[0][:12] for log in logs] == ["demo-epoch-1", "demo-epoch-2"]
    placed = 0
    for log in logs:
        result = ran("replay", str(log))
        assert "every decision is the same as recorded" in result.output
        placed += int(result.output.split(" inputs, ")[1].split()[0])
    assert placed >= 90
    assert ran("replay", *reversed(logs)).output.count(" inputs, ") == 2
