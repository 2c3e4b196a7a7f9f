"""The reports in a real browser: nothing in its console, every figure drawn, in light and dark, on a wide and a narrow
screen."""

from collections.abc import Callable
from pathlib import Path

import pytest

from deployments.accounting.billing import bill_of
from deployments.accounting.gathering import gathered
from deployments.accounting.pricing import TokenPricing
from planning.capacity.rates import RateSearch
from planning.plans.compare import elsewhere, side_by_side
from planning.plans.planner import PlanLimits, checked_plan
from planning.plans.rates import RateSource
from planning.plans.result import PlanResult
from planning.report import cost, plan, simulation, tuning
from tests.deployments.accounting.replicas import BEGIN, imagined
from tests.pages.browser import CHROMIUM, Tab, tab
from tests.planning.plans import small
from tests.planning.report.test_simulation import FACTS, run_of
from tests.planning.report.test_tuning import facts, searched

pytestmark = [pytest.mark.whole, pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine")]


def bill(folder: Path) -> str:
    cell = imagined(5, 400, tenants=tuple(f"</script>{number}" for number in range(25)))
    found = bill_of(gathered((BEGIN, one) for one in cell.facts), cell.hours, lambda tariff: TokenPricing(4.0))
    page = cost.render(found, ["tenant", "USD"], [["<b>a</b>", "1"], ["all", "1"]], ["a note"])
    assert "<b>a</b>" not in page
    return page


def plan_of_a_worksheet(folder: Path) -> str:
    offer = {"model": "demo", "usd_per_input_mtok": 1, "usd_per_output_mtok": 2}
    search = RateSearch(requests=200, max_requests=400, seeds=(0,), tolerance=0.2)
    case = small.case(folder, {"elsewhere": [offer]})
    found, checks = checked_plan(case, RateSource(search), PlanLimits(limit_s=300), lambda text: None)
    bought, beside = elsewhere(found, lambda text: None), side_by_side(found, search, lambda text: None)
    return plan.render(PlanResult(found, checks, bought, beside, {"demo": "unknown"}), "sheet.yaml")


def simulated_run(folder: Path) -> str:
    return simulation.render(run_of(2_000, 400.0), FACTS)


def proposal(folder: Path) -> str:
    runner, advice, diff = searched(4)
    return tuning.render(advice, runner.load, facts(diff))


PAGES: dict[Callable[[Path], str], int] = {bill: 2, plan_of_a_worksheet: 3, simulated_run: 6, proposal: 2}
"""With their numbers of figures."""
LAYERS = ", ".join(f".{kind}layer.mlayer > g" for kind in ("scatter", "bar", "heatmap"))
FILLED = (
    "[...document.querySelectorAll('.plot.js-plotly-plot')]"
    f".filter(plot => plot.querySelector('.main-svg') && plot.querySelector('{LAYERS}')).length"
)
"""How many figures have something in them."""


async def test_every_figure_is_drawn_and_the_console_is_clean(tmp_path: Path, subtests: pytest.Subtests) -> None:
    async with tab(tmp_path / "browser") as page:
        for make, figures in PAGES.items():
            with subtests.test(page=make.__name__):
                file = tmp_path / f"{make.__name__}.html"
                file.write_text(make(tmp_path), encoding="utf-8")
                for width, dark in ((1280, False), (500, True)):
                    await page.open(file.as_uri(), width=width, dark=dark)
                    await page.until("document.documentElement.dataset.drawn")
                    assert await page.value("document.documentElement.dataset.drawn") == str(figures)
                    assert await page.value(FILLED) == figures
                if make is simulated_run:
                    await zooms_together_and_fits_the_paper(page, file)
                assert page.errors == []


POKE = """
(async () => {
  const plots = [...document.querySelectorAll(".plot")];
  const spans = () => plots.map((plot) => plot.layout.xaxis.range.map((end) => end.toFixed(3)).join(".."));
  const widths = () => plots.map((plot) => plot.querySelector(".main-svg").width.baseVal.value);
  const pause = () => new Promise((resolve) => setTimeout(resolve, 1000));
  const seen = { before: spans() };
  document.querySelector("button.goto").click();
  await pause();
  seen.minute = spans();
  await Plotly.relayout(plots[3], { "xaxis2.range": [1, 2] });
  await pause();
  seen.dragged = spans();
  document.getElementById("whole").click();
  await pause();
  seen.whole = spans();
  dispatchEvent(new Event("beforeprint"));
  seen.printed = widths();
  dispatchEvent(new Event("afterprint"));
  await pause();
  seen.after = widths();
  return seen;
})()
"""


async def zooms_together_and_fits_the_paper(page: Tab, file: Path) -> None:
    await page.open(file.as_uri())
    await page.until("document.documentElement.dataset.drawn")
    seen = await page.value(POKE)
    for spans in (seen["before"], seen["minute"], seen["dragged"], seen["whole"]):
        assert len(set(spans)) == 1
    assert seen["minute"] != seen["before"] == seen["whole"]
    assert seen["dragged"][0] == "1.000..2.000"
    assert set(seen["printed"]) == {680}
    assert min(seen["after"]) > 1_000
