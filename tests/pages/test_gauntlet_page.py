"""The gauntlet's page in a real browser: no error in its console, every figure drawn, in light and dark, on a wide and
a narrow screen."""

from pathlib import Path

import pytest

from planning.report.gauntlet import render
from tests.pages.browser import CHROMIUM, assert_drawn, browse, every_screen
from tests.planning.report.test_gauntlet import FACTS, some_results

pytestmark = [pytest.mark.whole, pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine")]


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("gauntlet") / "gauntlet.html"
    path.write_text(render(some_results(), "backlog", FACTS), encoding="utf-8")
    return path


@every_screen
def test_every_figure_is_drawn_and_the_console_is_clean(page: Path, tmp_path: Path, options: tuple[str, ...]) -> None:
    assert_drawn(tmp_path, page, options, figures=8)


def test_it_can_be_printed(page: Path, tmp_path: Path) -> None:
    paper = tmp_path / "page.pdf"
    browse(tmp_path, page, f"--print-to-pdf={paper}")
    assert paper.read_bytes()[:5] == b"%PDF-"
