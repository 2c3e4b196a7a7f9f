"""Recorded traces of others, which are not committed: tests that want one skip, and say so, where it is not at hand."""

import os
from pathlib import Path

import pytest

FOLDER = Path(os.environ.get("RAYLANE_TRACES") or Path(__file__).parents[4] / "shared" / "data" / "traces")


def real(name: str) -> Path:
    """The path of a recorded trace, or of another file beside it."""
    path = FOLDER / name
    if not path.exists():
        pytest.skip(f"{path} is not on this machine (RAYLANE_TRACES names the folder)")
    return path
