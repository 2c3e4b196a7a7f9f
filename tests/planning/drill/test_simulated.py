"""Drills in the simulator of several cells: small cells, whose faults have a known effect."""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from cluster.files import shipped
from cluster.spec import load_spec
from deployments.engine_model.cost_file import read_cost_file
from planning.drill.drill import Drill, DrillTraffic, RequestShape, drawn_traffic, drill_on
from planning.drill.findings import DrillFindings, findings_of
from planning.drill.record import DrillRecord, SendEnd
from planning.drill.simulated import DrillCase, simulate_drill
from planning.simulator.faults import FaultKind
from planning.workload.lengths import LogNormal

SHAPE = RequestShape(LogNormal(900, 0.8), LogNormal(200, 0.6), 2.0)
TRIPS = {frozenset(("eu", "us")): 0.04, frozenset(("eu", "ap")): 0.08, frozenset(("us", "ap")): 0.08}


@pytest.fixture(scope="module")
def case() -> DrillCase:
    spec = load_spec(shipped("specs/three-regions.yaml"))
    return DrillCase(spec, spec.models[0], read_cost_file(Path(str(spec.costs_of(spec.models[0])))), TRIPS)


@pytest.fixture(scope="module")
def capacity(case: DrillCase) -> float:
    return case.capacity(SHAPE)


def traffic_at(case: DrillCase, capacity: float, loads: tuple[float, float, float], seed: int = 0) -> DrillTraffic:
    rates = {name: load * capacity for name, load in zip(case.cells, loads, strict=True)}
    return drawn_traffic(rates, 90.0, SHAPE, seed)


def run(case: DrillCase, drill: Drill, traffic: DrillTraffic) -> tuple[DrillRecord, DrillFindings]:
    record = simulate_drill(case, drill, traffic)
    return record, findings_of(drill, record, case.slo)


@pytest.mark.whole
def test_a_lost_region_loses_what_ran_there_and_nothing_else(case: DrillCase, capacity: float) -> None:
    traffic = traffic_at(case, capacity, (0.5, 0.4, 0.4))
    drill = drill_on(FaultKind.REGION_LOSS, "eu", (), 30.0, math.inf, 90.0)
    record, found = run(case, drill, traffic)
    assert set(found.lost) <= {"reset", "error_event"}
    assert found.lost["reset"] > 0
    broken = record.of(SendEnd.RESET) | record.of(SendEnd.ERROR_EVENT)
    assert (record.sent_s[broken] < 30.0).all()
    assert record.again.sum() == broken.sum(), "each client sends its request again"
    assert not np.isnan(record.finished_s[record.again]).any()
    assert (record.served[record.sent_s >= 30.0] != 0).all()
    assert found.next_answer_s is not None
    assert found.replica_s["eu"] == pytest.approx(2 * 30.0)
    assert found.replica_s["us"] == pytest.approx(2 * 90.0)
    assert found.usd == pytest.approx((60 * 3.0 + 180 * 2.6 + 180 * 3.4) / 3600)


@pytest.mark.whole
def test_before_the_fault_nothing_differs(case: DrillCase, capacity: float) -> None:
    traffic = traffic_at(case, capacity, (0.7, 0.4, 0.4))
    drill = drill_on(FaultKind.REGION_LOSS, "eu", (), 30.0, math.inf, 90.0)
    record = simulate_drill(case, drill, traffic)
    alone = case.run(None, traffic)
    early = traffic.work.arrived_s < 25.0
    count = int(early.sum())
    done = alone.finished_s[:count] < 30.0
    np.testing.assert_array_equal(record.ttft_s[:count][done], alone.ttft_s[:count][done])


@pytest.mark.whole
def test_a_region_that_comes_back_serves_its_clients_again(case: DrillCase, capacity: float) -> None:
    traffic = traffic_at(case, capacity, (0.4, 0.3, 0.3))
    drill = drill_on(FaultKind.REGION_LOSS, "eu", (), 30.0, 20.0, 90.0)
    record, found = run(case, drill, traffic)
    assert found.heals
    late = record.sent_s > 75.0
    assert (record.served[late & (record.home == 0)] == 0).mean() > 0.5


@pytest.mark.whole
def test_a_partition_loses_nothing(case: DrillCase, capacity: float) -> None:
    traffic = traffic_at(case, capacity, (0.6, 0.4, 0.4))
    drill = drill_on(FaultKind.PARTITION, "eu", ("us", "ap"), 30.0, 20.0, 90.0)
    record, found = run(case, drill, traffic)
    inside = (record.sent_s > 31.0) & (record.sent_s < 49.0)
    assert not record.handed_over[inside & (record.home == 0)].any()
    assert found.lost.get("unanswered", 0) == found.lost.get("reset", 0) == 0


@pytest.mark.whole
def test_a_lost_zone_breaks_only_answers_that_have_begun(case: DrillCase, capacity: float) -> None:
    traffic = traffic_at(case, capacity, (0.9, 0.3, 0.3))
    drill = drill_on(FaultKind.ZONE_LOSS, "eu", (), 30.0, 1e-3, 90.0, share=0.5)
    record, found = run(case, drill, traffic)
    broken = record.of(SendEnd.ERROR_EVENT)
    assert broken.any()
    assert (record.sent_s[broken] + record.ttft_s[broken] <= 30.1).all()
    assert set(found.lost) == {"error_event"}
    waited = (record.sent_s < 30.0) & (record.sent_s + record.ttft_s > 30.1) & (record.home == 0)
    assert waited.any()
    assert not np.isnan(record.finished_s[waited]).any(), "who had no byte is placed again"
    first = dict(zip(record.sent_s[broken].tolist(), broken.nonzero()[0].tolist(), strict=True))
    assert record.again.sum() == len(first)


@pytest.mark.whole
def test_who_is_rejected_goes_on_to_another_cell(case: DrillCase, capacity: float) -> None:
    """One small lane at home, far too much for it, and no hand-over."""
    lanes = tuple(lane.model_copy(update={"cap_s": 2.0}) for lane in case.spec.lanes)
    alone = _without_hand_over(case).model_copy(update={"lanes": lanes})
    traffic = traffic_at(case, capacity, (2.0, 0.2, 0.2))
    drill = drill_on(FaultKind.BROWN_OUT, "eu", (), 30.0, 10.0, 90.0, speed=1.0)
    record, found = run(replace(case, spec=alone), drill, traffic)
    by_itself = (record.home == 0) & (record.asked != 0)
    assert not record.handed_over.any()
    assert by_itself.sum() > 100
    assert (record.served[by_itself] == record.asked[by_itself]).mean() > 0.95
    assert found.lost.get("rejected", 0) < 0.02 * len(record)


@pytest.mark.whole
def test_a_brown_out_moves_requests_to_the_peers(case: DrillCase, capacity: float) -> None:
    traffic = traffic_at(case, capacity, (0.6, 0.3, 0.3))
    drill = drill_on(FaultKind.BROWN_OUT, "eu", (), 30.0, 40.0, 90.0, speed=0.4)
    _, found = run(case, drill, traffic)
    assert found.of("during", "eu").handed_over > 5 * found.of("before", "eu").handed_over
    alone = replace(case, spec=_without_hand_over(case))
    worse = findings_of(drill, simulate_drill(alone, drill, traffic), case.slo)
    assert found.of("during", "eu").met > worse.of("during", "eu").met
    assert not found.lost


def _without_hand_over(case: DrillCase):  # type: ignore[no-untyped-def]
    peering = case.spec.peering
    assert peering is not None
    stingy = peering.model_copy(update={"hand_over": peering.hand_over.model_copy(update={"margin_s": 3_600.0})})
    return case.spec.model_copy(update={"peering": stingy})
