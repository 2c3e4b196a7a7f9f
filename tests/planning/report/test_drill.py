"""The page of a drill: it loads nothing, and says what was seen, lost and predicted."""

import base64
import json
import math
import re
from dataclasses import replace
from html import escape

import numpy as np
import pytest

from planning.drill.drill import Drill, DrillTraffic, StartTimes, drill_on
from planning.drill.findings import DrillSlo, findings_of
from planning.drill.record import DrillRecord, SendEnd, SentRequest, record_of
from planning.drill.result import DrillResult, DrillRun, compared_rows
from planning.report.drill import render
from planning.simulator.faults import FaultKind
from planning.simulator.workload import plain_workload

CELLS = ("eu", "us", "ap")
SLO = DrillSlo(2.0, 0.95)
TRIPS = {frozenset(("eu", "us")): 0.04, frozenset(("eu", "ap")): 0.08, frozenset(("us", "ap")): 0.08}


def record_with(late_until_s: float, seed: int = 0) -> DrillRecord:
    """Nine requests a second; those of the lost cell are late for a while, and some of them break."""
    rng = np.random.default_rng(seed)
    requests = []
    for at_s in np.sort(rng.uniform(0, 90, 810)).tolist():
        home = CELLS[int(rng.integers(3))]
        lost = home == "eu" and at_s >= 30
        late = lost and at_s < late_until_s
        ttft_s = float(rng.gamma(2, 0.2)) + (3.0 if late else 0.0)
        served = CELLS[1 + int(rng.integers(2))] if lost else home
        requests.append(
            SentRequest(at_s, home, served if lost else home, served, ttft_s, at_s + ttft_s + 4, SendEnd.ANSWERED)
        )
    for number in range(7):
        at_s = 25.0 + number / 2
        requests.append(SentRequest(at_s, "eu", "eu", None, 0.5, None, SendEnd.RESET))
        requests.append(SentRequest(30.0, "eu", "us", "us", 1.5, 36.0, SendEnd.ANSWERED, again=True))
    return record_of(CELLS, requests, {"eu": 60.0, "us": 180.0, "ap": 180.0}, 0.35, 0.4)


def result_of(live: bool, drill: Drill | None = None) -> DrillResult:
    plan = drill or drill_on(FaultKind.REGION_LOSS, "eu", (), 30.0, math.inf, 90.0)
    simulated, seen = (DrillRun(one, findings_of(plan, one, SLO)) for one in (record_with(42.0), record_with(44.0, 1)))
    times = np.sort(np.random.default_rng(0).uniform(0, 90, 810))
    work = plain_workload(times, np.full(810, 300), np.full(810, 100), SLO.ttft_s)
    traffic = DrillTraffic(CELLS, work, np.arange(810) % 3, np.arange(810) // 3 % 20)
    return DrillResult(
        "c<b>", "m", SLO, plan, traffic, TRIPS, simulated, (10.0, None), seen if live else None, 0.01 if live else None
    )


@pytest.fixture(scope="module")
def page() -> str:
    return render(result_of(live=True))


def test_the_page_loads_nothing_and_shows_all(page: str) -> None:
    result = result_of(live=True)
    assert "c&lt;b&gt;" in page
    assert escape(result.headline) in page
    assert "last hand-over to eu after its loss" in page
    for row in compared_rows(result.compared):
        assert escape(row[0]) in page
        assert escape(row[-1]) in page
    figures = re.findall(r'class="figure" data-plot="([^"]+)" data-axis="own">(.*?)</script>', page, flags=re.S)
    assert [key for key, _ in figures] == ["ttft-plot", "met-plot", "requests-plot"]
    for key, figure in figures:
        assert json.loads(figure)["data"]
        assert f'id="{key}"' in page
    own = page[: page.index("<script>")]
    assert not re.search(r'(src|href)="(?!#)', own)


def test_a_simulated_drill_compares_with_nothing() -> None:
    page = render(result_of(live=False))
    assert "Simulated drill of" in page
    assert "Predicted and seen" not in page


def test_an_slo_that_never_holds_again_is_a_miss() -> None:
    plan = drill_on(FaultKind.REGION_LOSS, "eu", (), 30.0, math.inf, 40.0)
    result = result_of(live=False, drill=plan)
    assert not result.good
    assert "the SLO did not hold again before the end" in render(result)


def test_a_recovery_that_was_not_seen_is_said_in_words() -> None:
    plan = drill_on(FaultKind.REGION_LOSS, "eu", (), 30.0, math.inf, 40.0)
    name, predicted, seen, error = compared_rows(result_of(live=True, drill=plan).compared)[0]
    assert name == "time until the SLO held again"
    assert (predicted, seen, error) == ("not before the end", "not before the end", "-")


def test_no_window_of_the_curves_begins_before_the_fault_and_ends_after_it(page: str) -> None:
    figures = dict(re.findall(r'class="figure" data-plot="([^"]+)" data-axis="own">(.*?)</script>', page, flags=re.S))
    curve = json.loads(figures["met-plot"])["data"][0]
    drawn = dict(zip(_numbers(curve["x"]), _numbers(curve["y"]), strict=True))
    assert all(drawn[x] is None for x in range(21, 30))
    assert None not in (drawn[20], drawn[30])


def _numbers(column: object) -> list[float | None]:
    """A column of a figure's JSON, plain or as plotly packs it."""
    if isinstance(column, dict):
        packed = np.frombuffer(base64.b64decode(column["bdata"]), dtype=column["dtype"])
        return [None if value != value else float(value) for value in packed]
    assert isinstance(column, list)
    return column


def test_it_is_said_how_long_a_cell_took_to_come_back() -> None:
    plan = drill_on(FaultKind.REGION_LOSS, "eu", (), 30.0, 20.0, 90.0)
    result = replace(result_of(live=True, drill=plan), started=StartTimes(12.0, 6.0))
    assert "its gateway answered 12.0 s later, its replicas after 6.0 s more" in render(result)
    assert result.as_json()["started_s"] == {"boot_s": 12.0, "replicas_s": 6.0}
    assert not replace(result_of(live=True), started=StartTimes(12.0, 6.0)).came_back, "it did not"
