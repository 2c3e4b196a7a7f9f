"""The gauntlet's page in a real browser: no error in its console, every figure drawn, in light and dark, on a wide and
a narrow screen."""

import re
from pathlib import Path

import pytest

from planning.report.gauntlet import render
from tests.pages.browser import CHROMIUM, browse
from tests.planning.report.test_gauntlet import FACTS, some_results

pytestmark = [pytest.mark.whole, pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine")]


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("gauntlet") / "gauntlet.html"
    path.write_text(render(some_results(), "backlog", FACTS), encoding="utf-8")
    return path


@pytest.mark.parametrize(
    "options", [("--window-size=1280,2000",), ("--window-size=500,2000", "--blink-settings=preferredColorScheme=0")]
)
def test_every_figure_is_drawn_and_the_console_is_clean(page: Path, tmp_path: Path, options: tuple[str, ...]) -> None:
    seen = browse(tmp_path, page, *options, "--dump-dom")
    assert "CONSOLE" not in seen.stderr
    assert 'data-drawn="8"' in seen.stdout
    plots = re.split(r'class="plot js-plotly-plot"', seen.stdout)[1:]
    assert len(plots) == 8
    for plot in plots:
        assert "main-svg" in plot
        assert re.search(r'class="(scatterlayer|barlayer) mlayer"><g', plot)


def test_it_can_be_printed(page: Path, tmp_path: Path) -> None:
    paper = tmp_path / "page.pdf"
    browse(tmp_path, page, f"--print-to-pdf={paper}")
    assert paper.read_bytes()[:5] == b"%PDF-"
