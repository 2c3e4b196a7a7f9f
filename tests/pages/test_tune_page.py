"""The report of a proposal in a real browser: no error in its console, both figures drawn, in light and dark, on a wide
and a narrow screen."""

from pathlib import Path

import pytest

from planning.report.tuning import render
from tests.pages.browser import CHROMIUM, assert_drawn, every_screen
from tests.planning.report.test_tuning import facts, searched

pytestmark = [pytest.mark.whole, pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine")]


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    runner, advice, diff = searched(4)
    path = tmp_path_factory.mktemp("report") / "tuned.html"
    path.write_text(render(advice, runner.load, facts(diff)), encoding="utf-8")
    return path


@every_screen
def test_both_figures_are_drawn_and_the_console_is_clean(page: Path, tmp_path: Path, options: tuple[str, ...]) -> None:
    assert_drawn(tmp_path, page, options, figures=2)
