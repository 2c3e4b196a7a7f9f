"""The report of a simulated run: whole, of one file, without a reference to anything outside, and with the facts in
it."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from cluster.spec import TrafficClass
from deployments.engine_model.cost_file import cost_file
from planning.report.facts import Price, RunFacts
from planning.report.figures import swaps
from planning.report.simulated_run import ReportedRun, describe
from planning.report.simulation import render, verdict
from tests.planning.report.pages import loads_nothing, whole_figure
from tests.planning.simulator.test_cell import COST, LIMITS, workload
from tests.planning.simulator.test_timeline import NAMES, run
from tests.planning.tune.cases import known_error

FACTS = RunFacts(
    spec="a <b>spec</b>",
    model="demo",
    trace="trace</script>.jsonl",
    replicas=2,
    load_scale=1.0,
    costs={Path("costs.json"): cost_file("demo", "1 x L40S", "roofline", LIMITS, COST)},
    classes=(
        TrafficClass(name="interactive", ttft_ms=5_000),
        TrafficClass(name="batch", ttft_ms=30_000, attainment=0.9),
    ),
    price=Price("GPU", 1, 3.6),
)


def run_of(count: int, rate: float) -> ReportedRun:
    work = workload(count, rate)
    out, samples = run(work)
    return describe(out, work, NAMES, samples)


@pytest.fixture(scope="module")
def busy() -> ReportedRun:
    return run_of(2_000, 400.0)


@pytest.fixture(scope="module")
def page(busy: ReportedRun) -> str:
    return render(busy, FACTS)


@pytest.mark.whole
def test_nothing_is_loaded_from_outside(page: str) -> None:
    loads_nothing(page)


def test_names_are_escaped(page: str) -> None:
    assert "<b>spec</b>" not in page
    assert "a &lt;b&gt;spec&lt;/b&gt;" in page


def test_every_figure_is_whole_and_every_colour_has_its_dark_one(page: str) -> None:
    figures = re.findall(
        r'<script type="application/json" class="figure" data-plot="(.*?)">(.*?)</script>', page, flags=re.DOTALL
    )
    assert [name for name, _ in figures] == [
        f"{key}-plot" for key in ("ttft", "queue", "service", "tokens", "capacity", "decisions")
    ]
    for name, text in figures:
        whole_figure(name, text)
        assert f'id="{name}"' in page
    assert json.loads(page.split('id="setting">')[1].split("</script>")[0])["swaps"] == swaps()


@pytest.mark.whole
def test_the_facts_are_on_the_page(page: str, busy: ReportedRun) -> None:
    assert "NOT MEASURED" in page
    assert f"{busy.whole.rejected:,}" in page
    assert f"${3.6 * busy.outcome.replica_s / 3600:,.2f}" in page
    assert "No comparison with a measured run was given" in page
    published = known_error(0.062, model="m")
    compared = render(busy, replace(FACTS, published=published, price=Price("replica", 1, None)))
    assert "+6.2 %" in compared
    assert "no price given" in compared
    assert "replica-hours" in compared


@pytest.mark.whole
def test_the_verdict_of_a_busy_and_of_a_calm_run(busy: ReportedRun) -> None:
    judged = verdict(busy, FACTS)
    assert not judged.kept
    assert judged.line.startswith("Misses its SLO: ")
    assert "first at 0:00:0" in judged.story
    evenly = verdict(
        run_of(600, 300.0),
        replace(FACTS, classes=(FACTS.classes[0], TrafficClass(name="batch", ttft_ms=30_000, attainment=0.5))),
    )
    assert not evenly.kept
    assert "0 of 2 slices of 1 s with arrivals were under the SLO; late" in evenly.story
    calm = run_of(60, 5.0)
    assert verdict(calm, FACTS).kept
    assert "No request missed" in verdict(calm, FACTS).story
    assert "No request missed its SLO" in render(calm, FACTS)
