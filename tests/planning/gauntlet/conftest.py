"""Recordings that every test of the gauntlet may run."""

from pathlib import Path

import pytest

from tests.planning.gauntlet.recordings import write_recordings


@pytest.fixture(scope="session")
def traces(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a small recording of each kind."""
    return write_recordings(tmp_path_factory.mktemp("traces"))
