"""A gateway whose logs lie on a full disk: it serves as before, says so, and writes again when there is room."""

import asyncio
from pathlib import Path

import pytest

from deployments import decision_log
from deployments.decision_log import read_log
from deployments.decisions import replay
from deployments.scheduling.recorder import SCHEDULING
from tests.deployments.gateway.rig import ASK, MakeRig
from tests.small_disk import small_disk


@pytest.mark.whole
async def test_a_full_disk_ends_no_request(make_rig: MakeRig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decision_log, "RETRY_S", 0.0)
    with small_disk(tmp_path / "disk") as disk:
        rig = await make_rig(decision_log=str(disk.path / "decisions"), trace_file=str(disk.path / "trace.jsonl"))

        async def load() -> None:
            answers = await asyncio.gather(*(rig.ask({**ASK, "stream": number % 2 == 0}) for number in range(20)))
            assert {status for status, _ in answers} == {200}
            await rig.settled()

        await load()
        disk.fill()
        await load()
        await load()
        failing = rig.gateway._status.here().report.gateway.failing_logs
        assert {one.name for one in failing} == {"trace", "decisions of demo"}
        assert all("No space left" in one.error for one in failing)
        assert rig.gateway._logs.named("trace").lost_lines > 10
        disk.free()
        await load()
        assert rig.gateway._status.here().report.gateway.failing_logs == ()
        placed = rig.owner.snapshot().placed
        await rig.gateway.stop()
        found = replay(read_log(sorted((disk.path / "decisions").glob("*.log"))), (SCHEDULING,))
        assert (found.difference, found.gaps > 0, 20 < found.counted < placed == 80) == (None, True, True)
