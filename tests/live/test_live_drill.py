"""Drills on three cells of the real stack over simulated engines: each its own Ray, 40 and 80 ms between them.

One set of cells goes through the faults that heal; the loss of a region has cells of its own, started by the real
command.
"""

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from cli.bench.run import allow_many_connections
from cli.drill.live import LiveClients, live_drill
from cli.drill.local_cells import LocalCells, local_cells
from cli.drill.options import read_case
from cluster.files import shipped
from planning.drill.drill import RequestShape, drawn_traffic, drill_on
from planning.drill.findings import DrillFindings, findings_of
from planning.drill.record import SendEnd
from planning.drill.simulated import DrillCase
from planning.simulator.faults import FaultKind
from planning.workload.lengths import LogNormal
from tests.live.cluster import ROOT

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]

SPEC = shipped("specs/three-regions.yaml")
TRIPS = ["80", "eu:us=40"]
SHAPE = RequestShape(LogNormal(200, 0.6), LogNormal(40, 0.4), 2.0)
LENGTH_S = 36.0


async def drilled(
    case: DrillCase, cells: LocalCells, kind: FaultKind, loads: dict[str, float], **how: float
) -> DrillFindings:
    """A third of the time before, during and after the fault."""
    others = [name for name in case.cells if name != "eu"]
    drill = drill_on(kind, "eu", others, LENGTH_S / 3, LENGTH_S / 3, LENGTH_S, **how)
    capacity = case.capacity(SHAPE)
    traffic = drawn_traffic({name: load * capacity for name, load in loads.items()}, LENGTH_S, SHAPE, 7)
    lived = await live_drill(case, drill, traffic, cells, LiveClients(prompts=int(time.monotonic())))
    await cells.settled()
    found = findings_of(drill, lived.record, case.slo)
    assert not found.twice
    assert len(lived.record) == len(traffic.work) + int(lived.record.again.sum())
    broken = lived.record.of(SendEnd.RESET) | lived.record.of(SendEnd.ERROR_EVENT)
    assert lived.record.again.sum() == broken.sum(), "whoever lost an answer has asked again"
    return found


async def test_faults_that_heal(tmp_path: Path, tell: list[str]) -> None:
    allow_many_connections()
    case = read_case(SPEC, None, None, TRIPS)
    half = dict.fromkeys(case.cells, 0.5)
    async with local_cells(case.spec, case.model.name, case.rtt_s, tmp_path) as cells:
        cut = await drilled(case, cells, FaultKind.PARTITION, half | {"eu": 1.3})
        tell.append(f"partition: {cut.as_json()}")
        assert "unanswered" not in cut.lost
        assert "reset" not in cut.lost, "peers are alive, and each client reaches its own cell"
        slow = await drilled(case, cells, FaultKind.SLOW_LINK, half | {"eu": 1.3}, more_rtt_s=0.4)
        tell.append(f"slow link: {slow.as_json()}")
        assert not set(slow.lost) - {"rejected"}
        brown = await drilled(case, cells, FaultKind.BROWN_OUT, half, speed=0.3)
        tell.append(f"brown-out: {brown.as_json()}")
        assert brown.of("during", "eu").handed_over > brown.of("before", "eu").handed_over
        zone = await drilled(case, cells, FaultKind.ZONE_LOSS, half, share=0.5)
        tell.append(f"zone loss: {zone.as_json()}")
        assert "unanswered" not in zone.lost


def test_a_lost_region_by_the_command(tmp_path: Path, tell: list[str]) -> None:
    page = tmp_path / "drill.html"
    # The nearest cell gets all clients of the lost one: 0.8 of its capacity, so that the command ends with status 0.
    arguments = ["region-loss", str(SPEC), "--live", "--load", "0.4", "--at", "15", "--length", "40", "--json"]
    trips = [part for trip in TRIPS for part in ("--rtt-ms", trip)]
    lengths = ["--input-tokens", "lognormal:200:0.6", "--output-tokens", "lognormal:40:0.4"]
    kept = tmp_path / "kept"
    outputs = ["--report", str(page), "--keep", str(kept)]
    command = [sys.executable, "-m", "cli.main", "drill", *arguments, *trips, *lengths, *outputs]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stdout + done.stderr
    found: dict[str, Any] = json.loads(done.stdout[done.stdout.index("{") :])
    live = found["live"]
    tell.append(f"region loss: live {live}, simulated {found['simulated']}")
    assert "unanswered" not in live["lost"]
    assert live["twice"] == 0
    assert live["last_hop_s"] <= 2.0, "peers stop sending within two seconds"
    assert live["next_answer_s"][1] <= 3.0, "the next answer of its clients, p99"
    assert "region-loss of eu" in page.read_text(encoding="utf-8")
    deadline = time.monotonic() + 10
    while left := [one for one in psutil.process_iter() if _runs_in(kept, one)]:
        assert time.monotonic() < deadline, left
        time.sleep(0.2)


def _runs_in(folder: Path, process: psutil.Process) -> bool:
    """Whether it belongs to a cell whose run directory is there."""
    try:
        return process.environ().get("RAYLANE_HOME", "").startswith(str(folder))
    except psutil.Error:
        return False
