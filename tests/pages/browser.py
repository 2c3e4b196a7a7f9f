"""A real browser that opens a page of ours."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


def browse(home: Path, page: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """Opens the page, lets its scripts run for some seconds of its own time, and ends."""
    assert CHROMIUM is not None
    settings = (
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--enable-logging=stderr",
        f"--user-data-dir={home}",
    )
    command = [CHROMIUM, *settings, "--virtual-time-budget=20000", *options, page.as_uri()]
    return subprocess.run(command, capture_output=True, text=True, timeout=150, check=True)


every_screen = pytest.mark.parametrize(
    "options", [("--window-size=1280,2000",), ("--window-size=500,2000", "--blink-settings=preferredColorScheme=0")]
)
"""A wide and light one, a narrow and dark one."""


def assert_drawn(home: Path, page: Path, options: tuple[str, ...], figures: int) -> None:
    """Nothing stands in the console, and each of so many figures has something drawn in it."""
    seen = browse(home, page, *options, "--dump-dom")
    assert "CONSOLE" not in seen.stderr
    assert f'data-drawn="{figures}"' in seen.stdout
    plots = re.split(r'class="plot js-plotly-plot"', seen.stdout)[1:]
    assert len(plots) == figures
    for plot in plots:
        assert "main-svg" in plot
        assert re.search(r'class="(scatterlayer|barlayer|heatmaplayer) mlayer"><g', plot)
