"""The calibration's page in a real browser: no error in its console, every figure drawn, in light and dark."""

from pathlib import Path

import pytest

from planning.report.calibration import render
from tests.pages.browser import CHROMIUM, assert_drawn, every_screen
from tests.planning.report.test_calibration import some_calibration

pytestmark = [pytest.mark.whole, pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine")]


@every_screen
def test_every_figure_is_drawn_and_the_console_is_clean(tmp_path: Path, options: tuple[str, ...]) -> None:
    page = tmp_path / "calibration.html"
    page.write_text(render(some_calibration(), 700, 3), encoding="utf-8")
    assert_drawn(tmp_path / "home", page, options, figures=4)
