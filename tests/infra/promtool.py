"""Prometheus' own tool for rules of alerts."""

import shutil
import subprocess
from pathlib import Path

import pytest

PROMTOOL = shutil.which("promtool")

needs_promtool = pytest.mark.skipif(PROMTOOL is None, reason="promtool is not installed: apt-get install prometheus")


def promtool(*arguments: str | Path) -> str:
    """What it prints; an AssertionError with that where it fails."""
    assert PROMTOOL is not None
    done = subprocess.run([PROMTOOL, *map(str, arguments)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
