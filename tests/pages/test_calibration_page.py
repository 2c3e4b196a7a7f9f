"""The calibration's page in a real browser: no error in its console, every figure drawn, in light and dark."""

import re
from pathlib import Path

import pytest

from planning.report.calibration import render
from tests.pages.browser import CHROMIUM, browse
from tests.planning.report.test_calibration import FACTS, some_calibration

pytestmark = [pytest.mark.whole, pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine")]


@pytest.mark.parametrize(
    "options", [("--window-size=1280,2000",), ("--window-size=500,2000", "--blink-settings=preferredColorScheme=0")]
)
def test_every_figure_is_drawn_and_the_console_is_clean(tmp_path: Path, options: tuple[str, ...]) -> None:
    page = tmp_path / "calibration.html"
    page.write_text(render(some_calibration(), FACTS), encoding="utf-8")
    seen = browse(tmp_path / "home", page, *options, "--dump-dom")
    assert "CONSOLE" not in seen.stderr
    assert 'data-drawn="4"' in seen.stdout
    plots = re.split(r'class="plot js-plotly-plot"', seen.stdout)[1:]
    assert len(plots) == 4
    for plot in plots:
        assert re.search(r'class="scatterlayer mlayer"><g', plot)
