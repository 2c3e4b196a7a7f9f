"""Drills on three cells of the real stack over simulated engines: each its own Ray, 40 and 80 ms between them.

One set of cells goes through the faults that heal; the loss of a region has cells of its own.
"""

import math
import time
from pathlib import Path

import pytest

from cli.bench.run import allow_many_connections
from cluster.files import shipped
from planning.simulator.faults import FaultKind
from planning.workload.lengths import LogNormal
from tests.live.drill.case import DrillCase, read_case, round_trips
from tests.live.drill.drill import RequestShape, drawn_traffic, drill_on
from tests.live.drill.findings import DrillFindings, findings_of
from tests.live.drill.live import LiveClients, live_drill
from tests.live.drill.local_cells import LocalCells, local_cells
from tests.live.drill.record import SendEnd

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]

SPEC = shipped("specs/three-regions.yaml")
TRIPS = round_trips(("eu", "us", "ap"), 0.04, 0.08)
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
    case = read_case(SPEC, TRIPS)
    half = dict.fromkeys(case.cells, 0.5)
    async with local_cells(case.spec, case.model.name, case.rtt_s, tmp_path) as cells:
        cut = await drilled(case, cells, FaultKind.PARTITION, half | {"eu": 1.3})
        tell.append(f"partition: {cut.as_json()}")
        assert "unanswered" not in cut.lost
        assert "reset" not in cut.lost, "peers are alive, and each client reaches its own cell"
        slow = await drilled(case, cells, FaultKind.SLOW_LINK, half | {"eu": 1.3}, more_rtt_s=0.4)
        tell.append(f"slow link: {slow.as_json()}")
        assert not set(slow.lost) - {"rejected"}
        zone = await drilled(case, cells, FaultKind.ZONE_LOSS, half, share=0.5)
        tell.append(f"zone loss: {zone.as_json()}")
        assert "unanswered" not in zone.lost


async def test_a_lost_region(tmp_path: Path, tell: list[str]) -> None:
    allow_many_connections()
    case = read_case(SPEC, TRIPS)
    drill = drill_on(FaultKind.REGION_LOSS, "eu", (), 15.0, math.inf, LENGTH_S)
    rates = dict.fromkeys(case.cells, 0.4 * case.capacity(SHAPE))
    async with local_cells(case.spec, case.model.name, case.rtt_s, tmp_path) as cells:
        lived = await live_drill(case, drill, drawn_traffic(rates, LENGTH_S, SHAPE, 7), cells, LiveClients())
    found = findings_of(drill, lived.record, case.slo)
    tell.append(f"region loss: {found.as_json()}")
    assert "unanswered" not in found.lost
    assert not found.twice
    assert found.last_hop_s is not None
    assert found.last_hop_s <= 2.0, "peers stop sending within two seconds"
    assert found.next_answer_s is not None
    assert found.next_answer_s[1] <= 3.0, "the next answer of its clients, p99"
