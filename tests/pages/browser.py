"""A real browser that opens a page of ours."""

import shutil
import subprocess
from pathlib import Path

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
