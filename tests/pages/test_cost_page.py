"""The bill's page in a real browser: no error in its console, every figure drawn, in light and dark."""

from pathlib import Path

import pytest

from deployments.accounting.billing import bill_of
from deployments.accounting.gathering import gathered
from deployments.accounting.pricing import TokenPricing
from planning.report.cost import render
from tests.deployments.accounting.replicas import BEGIN, imagined
from tests.pages.browser import CHROMIUM, assert_drawn, every_screen

pytestmark = [pytest.mark.whole, pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine")]


@every_screen
def test_every_figure_is_drawn_and_the_console_is_clean(tmp_path: Path, options: tuple[str, ...]) -> None:
    tenants = tuple(f"</script>{number}" for number in range(25))
    cell = imagined(5, 400, tenants=tenants)
    bill = bill_of(gathered((BEGIN, one) for one in cell.facts), cell.hours, lambda tariff: TokenPricing(4.0))
    page = tmp_path / "cost.html"
    table = ["tenant", "USD"], [["<b>a</b>", "1"], ["all", "1"]], ["a note"]
    page.write_text(render(bill, *table), encoding="utf-8")
    assert "<b>a</b>" not in page.read_text(encoding="utf-8")
    assert_drawn(tmp_path / "home", page, options, figures=2)
