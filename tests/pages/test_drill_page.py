"""The drill's page in a real browser: no error in its console, every figure drawn, in light and dark."""

from pathlib import Path

import pytest

from planning.report.drill import render
from tests.pages.browser import CHROMIUM, assert_drawn, every_screen
from tests.planning.report.test_drill import result_of

pytestmark = [pytest.mark.whole, pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine")]


@every_screen
def test_every_figure_is_drawn_and_the_console_is_clean(tmp_path: Path, options: tuple[str, ...]) -> None:
    page = tmp_path / "drill.html"
    page.write_text(render(result_of(live=True)), encoding="utf-8")
    assert_drawn(tmp_path / "home", page, options, figures=3)
