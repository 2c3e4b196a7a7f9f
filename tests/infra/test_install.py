"""The installation where the package index does not answer."""

import os
import socket
import subprocess
from pathlib import Path

import pytest

from tests.infra.conftest import ROOT


@pytest.mark.whole
def test_an_index_that_is_silent_ends_the_installation_within_a_minute(tmp_path: Path) -> None:
    """pip alone tries five times, and waits longer each time."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        index = {"PIP_INDEX_URL": f"http://127.0.0.1:{silent.getsockname()[1]}/simple", "PIP_CONFIG_FILE": os.devnull}
        environment = {name: value for name, value in os.environ.items() if not name.startswith(("PIP_", "UV_"))}
        done = subprocess.run(
            [ROOT / "infra" / "install.sh", "cpu"],
            env={**environment, **index, "VENV": str(tmp_path / "venv")},
            capture_output=True,
            text=True,
            timeout=60,
        )
    assert done.returncode == 1
    assert "this machine's Python package index does not answer" in done.stderr
