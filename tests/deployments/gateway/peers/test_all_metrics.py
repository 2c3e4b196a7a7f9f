"""A gateway that has something to say of everything exports the whole table of metrics: none that nothing sets, none
beside it."""

import time
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import pytest

from cluster.spec import CacheSpec, SemanticSpec
from deployments.accounting.bill import Amounts, Bill, BillLine, LineKey, TimeShare
from deployments.cell.act import ActKind
from deployments.cell.control import Control, ControlKind
from deployments.cell.departure import DepartureCause, Departures, DepartureTally, Lost, MemberKind
from deployments.cell.listing import Listing
from deployments.cell.orders import Orders
from deployments.cell.scaling_state import ScalingState, ScalingSummary
from deployments.gateway.cache import ResponseCache
from deployments.gateway.peers.auth import CallRefusal
from deployments.lane_stats import LaneStats
from deployments.ownership.dispatcher import Dispatcher
from deployments.peering.reasons import StayReason
from deployments.protocol import Finished, Usage
from deployments.scheduling import LadderOrder, LadderStats, Rung
from deployments.scheduling.snapshot import DemandStats, GroupStats, ReplicaStats, Snapshot
from deployments.starts.phases import Phase
from deployments.starts.start import CellStarts, ReplicaStart, StartTally
from deployments.telemetry.ledger import Degradation, Ledger, RequestOutcome
from deployments.telemetry.published_error import write_published
from deployments.telemetry.table import METRICS, Exporter
from deployments.traffic.published_drift import PublishedDrift, write_drift
from tests.deployments.gateway.operators.test_samples import ERROR, OFF
from tests.deployments.gateway.peers.cells import MakeCells, peering_of
from tests.deployments.gateway.rig import Rig, until
from tests.deployments.gateway.test_gateway_cache_semantic import no_vector
from tests.deployments.gateway.test_gateway_groups import MODEL

START = ReplicaStart("r", "demo@cheap", "node", 1.0, Phase.LOAD, 2.0, {Phase.NODE: 1.0})
KEY = LineKey(0, "eu", "demo", "cheap", TimeShare.WORK, "acme", "interactive", Fraction(2))
ANNOUNCED = Listing(
    0,
    (),
    None,
    orders=Orders(
        controls=(("demo@cheap", Control(ControlKind.HOLD, 1, time.time() + 3_600)),),
        acts=(("demo@cheap", ActKind.HOLD, 1),),
    ),
    scaling=ScalingSummary(
        (ScalingState("demo@cheap", 1, 1, 1, 0, "backlog", 1.0),),
        (("demo@cheap", "backlog", 1),),
        (("demo@cheap", "stale", 1),),
    ),
    departures=Departures(
        (), (DepartureTally(MemberKind.REPLICA, "demo", DepartureCause.PROCESS_DIED, 1, Lost(1, 1, 9)),)
    ),
    starts=CellStarts((START,), (START,), (), (StartTally("demo@cheap", 1, {Phase.NODE: 1.0}, {Phase.LOAD: 1}),)),
)


EXTERNAL = {
    "url": "https://api.example.com/v1",
    "models": {"demo": "theirs"},
    "tenants": {"acme": 1.0},
    "usd_per_mtok_in": 1.0,
    "usd_per_mtok_out": 1.0,
}


def ended(rig: Rig, *, counted: bool) -> None:
    """A streamed request, whose tokens the engine counted or did not."""
    one = Ledger("client", "engine", "/v1/completions", 100.0, 1.7e9, model="demo", tenant="acme", lane="short")
    one.traffic_class, one.stream, one.status, one.outcome = "interactive", True, 200, RequestOutcome.OK
    one.resubmitted, one.expected_prompt_tokens, one.client_rtt_s = "replica_lost", 10, 0.01
    one.degraded = (Degradation(Rung.CLAMP, "demo", "ladder"),)
    one.submitted(100.1)
    one.left_lane(100.2, placed=True)
    one.first_byte_s, one.last_byte_s, one.ended_s = 100.5, 101.0, 101.0
    one.finished = Finished("engine", 200, Usage(10, 5, 10, 0, 1, 0.1, 0.5, 0.0), 0.1, 0.4) if counted else None
    rig.gateway._metrics.observe(one)
    rig.gateway._levels.observe(one)


def busy(idle: Snapshot) -> Snapshot:
    """A scheduler whose estimates have settled, with a replica, and that has rejected a request."""
    return replace(
        idle,
        lanes=(LaneStats("short", 1, 10.0, 1.0, 1.0, None, (1.0, 2.0), 1, 2, 1),),
        replicas=(ReplicaStats("r", "ready", 1, 1, 10, 10, 1.0, None, 8, 100, None, "cheap"),),
        groups=(GroupStats("cheap", 1.0, 1, 1.0, 1, 1),),
        demands=(DemandStats("short", ("cheap", "dear"), 1, 10.0, 1, 10.0, 10),),
        rejections={("short", "lane_full"): 1},
        ladder=LadderStats(("clamp:batch",), 1, LadderOrder(), {}),
        tokens_per_s=1.0,
        output_error=0.1,
        other_lane=0.1,
    )


def count_hops(rig: Rig) -> None:
    """All that can be counted of peers."""
    hand_overs, peers = rig.service.hand_overs, rig.gateway.cell_peers
    assert hand_overs is not None
    assert peers._exchange is not None
    assert peers.credentials is not None
    for counts in (hand_overs.taken, hand_overs.rejected, hand_overs.broken):
        counts["demo", "us", "why"] += 1
    hand_overs.guests["demo", "us"] += 1
    peers._exchange.refused["us", "why"] += 1
    peers._exchange.failed["us"] += 1
    peers.credentials.refused["us", CallRefusal.WRONG_TOKEN] += 1
    peering_of(rig).refusals["why"] += 1
    peering_of(rig).stays[StayReason.IN_TIME] += 1


def count_kept(rig: Rig) -> None:
    """Kept answers, and first turns that were alike."""
    cache = ResponseCache(CacheSpec(semantic=SemanticSpec(model="encoder")), no_vector)
    cache._lookups.values["demo", "hit"] += 1
    cache._saved.values["demo", "in"] += 1
    assert cache._semantic is not None
    cache._semantic._similarity.observe(("demo", "equal"), 0.9)
    cache._semantic._in_shadow.values["demo",] += 1
    rig.service.cache = cache


async def test_a_gateway_exports_the_table_of_metrics(
    make_cells: MakeCells, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    error, drift = tmp_path / "error.json", tmp_path / "drift.json"
    write_published(error, ERROR)
    write_drift(drift, PublishedDrift(worksheet="sheet", compared_unix_s=1_000, figures=(OFF,)))
    tenants = [{"name": "acme", "keys": ["sha256:" + "0" * 64]}]
    cells = make_cells(models=[MODEL], tenants=tenants, external=EXTERNAL)
    rig = await cells.start("eu", engines=0, gateway={"simulator_error": str(error), "drift": str(drift)})
    await cells.start("us", engines=0)
    await cells.met()
    await until(lambda: list(rig.gateway._lag.samples()))
    for counted in (True, False):
        ended(rig, counted=counted)
    count_hops(rig)
    assert rig.service.external is not None
    rig.service.external._counts.values["demo", "answered"] += 1
    count_kept(rig)
    rig.gateway._announced.take(ANNOUNCED)
    rig.gateway._cost_totals.bill = Bill((BillLine(KEY, Amounts(10, prompt_tokens=1, output_tokens=1)),))
    snapshot = busy(rig.owner.snapshot())
    with monkeypatch.context() as patch:
        patch.setattr(Dispatcher, "snapshot", lambda self: snapshot)
        exported = [one for one in rig.gateway._registry().collect() if one.name.startswith("raylane_")]
    known = {metric.name: metric for metric in METRICS if metric.exporter is not Exporter.ENGINE}
    assert {one.name for one in exported} == known.keys()
    for family in exported:
        assert family.type == known[family.name].kind
        assert family.samples
        assert all(set(sample.labels) - {"le"} == set(known[family.name].labels) for sample in family.samples)
