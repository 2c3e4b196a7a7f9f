"""The report of a cell: what a gateway writes as JSON is what a command reads."""

import json
from dataclasses import replace

import pytest

from cluster.fetch_progress import FetchProgress
from deployments.cell.departure import DepartureCause
from deployments.gateway.operators.other_gateways import merged
from deployments.gateway.operators.report import GatewayAnswer, GroupReport, PeerReport, SuspectReport, TtftSample
from deployments.starts.phases import Phase
from deployments.starts.start import FailingModel, ReplicaStart, StartOutcome
from deployments.traffic.published_drift import OffFigure, PublishedDrift
from deployments.wire import WireError, from_plain, to_plain
from tests.cli.test_narrow import MODEL, replica, report

START = ReplicaStart(
    "r",
    MODEL,
    "n",
    1.0,
    Phase.FETCH,
    2.0,
    {Phase.FETCH: 1.0},
    StartOutcome.READY,
    9.0,
    "",
    "",
    FetchProgress(1, 2, 2, 3.0),
)


def answer() -> GatewayAnswer:
    """With something in every part."""
    model = replace(
        report().models[0],
        starting=(START,),
        failing_start=FailingModel(MODEL, 2, START, 5.0),
        replicas=(replace(replica(1, "cordoned"), start=START), replica(2, "draining")),
        suspects=(SuspectReport("digest", 1, False, 2.0),),
        peers=(PeerReport("us", None, None, 1.0, None),),
        groups=(GroupReport(name="g", model=f"{MODEL}@g", desired_replicas=1),),
    )
    drift = PublishedDrift(worksheet="w", compared_unix_s=1, figures=(OffFigure(MODEL, "c", "r", "q", 1.0, 2.0),))
    whole = replace(report(), models=(model,), drift=drift)
    return GatewayAnswer(whole, {MODEL: TtftSample(3, tuple(number / 100 for number in range(101)))})


def test_what_is_written_is_read() -> None:
    given = answer()
    content = json.loads(json.dumps(to_plain(given)))
    assert from_plain(content, GatewayAnswer) == given
    content["report"]["models"][0]["leases"] = "many"
    with pytest.raises(WireError, match=r"models\[0\]\.leases"):
        from_plain(content, GatewayAnswer)


def test_the_cells_report_is_the_owners_word_and_the_sum_of_all_gateways() -> None:
    own = answer()
    (owned,) = own.report.models
    owned = replace(owned, under_way=2, lost_requests=1)
    older = replace(owned, epoch=3, owner="elsewhere", leases=1)
    (gateway, *_) = own.report.gateways
    here = replace(own, report=replace(own.report, models=(replace(older, owner=None, epoch=None),)))
    others = [replace(own, report=replace(own.report, gateway=gateway, models=(one,))) for one in (older, owned)]
    found = merged([here, *others])
    (model,) = found.models
    assert (model.owner, model.epoch, model.leases) == (owned.owner, owned.epoch, owned.leases)
    assert (model.under_way, model.lost_requests, len(found.gateways)) == (6, 3, 3)
    assert model.ttft_ms is not None
    assert (model.ttft_ms.requests, model.ttft_ms.p50) == (9, pytest.approx(500, abs=20))
    assert {one.cause for one in found.departures} >= {DepartureCause.STOPPED}
