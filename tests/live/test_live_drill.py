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
from tests.live.drill.drill import Drill, RequestShape, drawn_traffic
from tests.live.drill.live import live_drill
from tests.live.drill.local_cells import LocalCells, local_cells
from tests.live.drill.record import DrillRecord, SendEnd

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]

SPEC = shipped("specs/three-regions.yaml")
TRIPS = round_trips(("eu", "us", "ap"), 0.04, 0.08)
SHAPE = RequestShape(LogNormal(200, 0.6), LogNormal(40, 0.4), 2.0)
LENGTH_S = 36.0
LINKS = (FaultKind.PARTITION, FaultKind.SLOW_LINK)


async def drilled(
    case: DrillCase, cells: LocalCells, kind: FaultKind, loads: dict[str, float], **how: float
) -> DrillRecord:
    """A third of the time before, during and after the fault."""
    others = tuple(name for name in case.cells if name != "eu") if kind in LINKS else ()
    drill = Drill(kind, "eu", others, LENGTH_S / 3, 2 * LENGTH_S / 3, LENGTH_S, **how)
    capacity = case.capacity(SHAPE)
    traffic = drawn_traffic({name: load * capacity for name, load in loads.items()}, LENGTH_S, SHAPE, 7)
    record, _ = await live_drill(case, drill, traffic, cells, int(time.monotonic()))
    await cells.settled()
    assert not record.twice.any()
    assert len(record) == len(traffic.work) + int(record.again.sum())
    broken = record.of(SendEnd.RESET) | record.of(SendEnd.ERROR_EVENT)
    assert record.again.sum() == broken.sum(), "whoever lost an answer has asked again"
    return record


async def test_faults_that_heal(tmp_path: Path, tell: list[str]) -> None:
    allow_many_connections()
    case = read_case(SPEC, TRIPS)
    half = dict.fromkeys(case.cells, 0.5)
    async with local_cells(case.spec, case.model.name, case.rtt_s, tmp_path) as cells:
        cut = (await drilled(case, cells, FaultKind.PARTITION, half | {"eu": 1.3})).lost
        assert "unanswered" not in cut
        assert "reset" not in cut, "peers are alive, and each client reaches its own cell"
        slow = (await drilled(case, cells, FaultKind.SLOW_LINK, half | {"eu": 1.3}, more_rtt_s=0.4)).lost
        assert not set(slow) - {"rejected"}
        zone = (await drilled(case, cells, FaultKind.ZONE_LOSS, half, share=0.5)).lost
        assert "unanswered" not in zone
        tell.append(f"lost: in a partition {cut}, on slow links {slow}, with half of the replicas {zone}")


async def test_a_lost_region(tmp_path: Path, tell: list[str]) -> None:
    allow_many_connections()
    case = read_case(SPEC, TRIPS)
    drill = Drill(FaultKind.REGION_LOSS, "eu", (), 15.0, math.inf, LENGTH_S)
    rates = dict.fromkeys(case.cells, 0.4 * case.capacity(SHAPE))
    async with local_cells(case.spec, case.model.name, case.rtt_s, tmp_path) as cells:
        record, _ = await live_drill(case, drill, drawn_traffic(rates, LENGTH_S, SHAPE, 7), cells)
        last_hop_s = cells.last_hop_s(drill)
    next_s = record.next_answer_s(drill)
    tell.append(f"a region lost: {record.lost}; the last hop {last_hop_s:.2f} s after; next answers in {next_s:.2f} s")
    assert "unanswered" not in record.lost
    assert not record.twice.any()
    assert last_hop_s <= 2.0, "peers stop sending within two seconds"
    assert next_s <= 3.0, "the next answer of its clients, p99"
