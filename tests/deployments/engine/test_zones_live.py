"""A zone that is lost: on a real Ray of labelled nodes, with Serve's own controller and our replicas."""

import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = [pytest.mark.long, pytest.mark.timeout(300)]
COSTS = Path(__file__).parents[3] / "infra/specs/simulated-h100.costs.json"


@pytest.fixture
def folder() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="rz"))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


def test_a_lost_zone_takes_its_share_and_its_replicas_come_back_in_the_others(folder: Path) -> None:
    script = Path(__file__).with_name("zones_host.py")
    done = subprocess.run(
        [sys.executable, str(script), str(folder), str(COSTS)], capture_output=True, text=True, cwd=folder, check=False
    )
    assert done.returncode == 0, done.stderr[-4000:]
    said = dict(map(json.loads, filter(lambda line: line.startswith("["), done.stdout.splitlines())))
    assert said["started"] == {"a": 2, "b": 1}
    assert said["lost"] == {"b": 3}
