"""The report of a proposal in a real browser: no error in its console, both figures drawn, in light and dark, on a wide
and a narrow screen."""

import re
from pathlib import Path

import pytest

from planning.report.tuning import render
from tests.pages.browser import CHROMIUM, browse
from tests.planning.report.test_tuning import facts, searched

pytestmark = [pytest.mark.whole, pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine")]


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    runner, advice, diff = searched(4)
    path = tmp_path_factory.mktemp("report") / "tuned.html"
    path.write_text(render(advice, runner.load, facts(diff)), encoding="utf-8")
    return path


@pytest.mark.parametrize(
    "options", [("--window-size=1280,2000",), ("--window-size=500,2000", "--blink-settings=preferredColorScheme=0")]
)
def test_both_figures_are_drawn_and_the_console_is_clean(page: Path, tmp_path: Path, options: tuple[str, ...]) -> None:
    seen = browse(tmp_path, page, *options, "--dump-dom")
    assert "CONSOLE" not in seen.stderr
    assert 'data-drawn="2"' in seen.stdout
    plots = re.split(r'class="plot js-plotly-plot"', seen.stdout)[1:]
    assert len(plots) == 2
    for plot in plots:
        assert "main-svg" in plot
        assert re.search(r'class="scatterlayer mlayer"><g', plot)
