"""What a real Ray Serve makes of our placements, on a node with four pretended GPUs."""

import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = [pytest.mark.long, pytest.mark.timeout(300)]


@pytest.fixture
def folder() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="rp"))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


def test_a_replica_gets_all_its_gpus_of_its_kind_on_one_node_or_none(folder: Path) -> None:
    script = Path(__file__).with_name("placement_host.py")
    done = subprocess.run(
        [sys.executable, str(script), str(folder)], capture_output=True, text=True, cwd=folder, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    given = {
        (ranks, kind): gpus
        for ranks, kind, gpus in map(json.loads, filter(lambda line: line.startswith("["), done.stdout.splitlines()))
    }
    assert [len(given[ranks, "L40S"].split(",")) for ranks in (1, 2, 4)] == [1, 2, 4]
    assert given[8, "L40S"] is None
    assert given[2, "H100"] is None
