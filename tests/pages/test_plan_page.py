"""The page of a plan in a real browser: no error in its console, all figures drawn, in light and dark, on a wide and a
narrow screen."""

from pathlib import Path

import pytest

from planning.capacity.rates import RateSearch
from planning.plans.compare import elsewhere, side_by_side
from planning.plans.planner import PlanLimits, checked_plan
from planning.plans.rates import RateSource
from planning.plans.result import PlanResult
from planning.report.plan import render
from tests.pages.browser import CHROMIUM, assert_drawn, every_screen
from tests.planning.plans import small

pytestmark = [pytest.mark.whole, pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine")]


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("plan")
    offer = {"model": "demo", "usd_per_input_mtok": 1, "usd_per_output_mtok": 2}
    search = RateSearch(requests=200, max_requests=400, seeds=(0,), tolerance=0.2)
    case = small.case(folder, {"elsewhere": [offer]})
    plan, checks = checked_plan(case, RateSource(search), PlanLimits(limit_s=10), lambda text: None)
    bought, beside = elsewhere(plan, lambda text: None), side_by_side(plan, search, lambda text: None)
    path = folder / "plan.html"
    path.write_text(
        render(PlanResult(plan, checks, bought, beside, {"demo": "unknown"}), "sheet.yaml"), encoding="utf-8"
    )
    return path


@every_screen
def test_all_figures_are_drawn_and_the_console_is_clean(page: Path, tmp_path: Path, options: tuple[str, ...]) -> None:
    assert_drawn(tmp_path, page, options, figures=3)
