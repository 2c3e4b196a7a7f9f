"""What a real Ray Serve makes of our placements, on a node with four pretended GPUs."""

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.long, pytest.mark.timeout(300)]


def answers_of(script: str, *arguments: object) -> list[list[Any]]:
    """What a script of this folder answers that has a Ray of its own, in a folder of a short path."""
    with tempfile.TemporaryDirectory(prefix="r", ignore_cleanup_errors=True) as folder:
        command = [sys.executable, str(Path(__file__).with_name(script)), folder, *map(str, arguments)]
        done = subprocess.run(command, capture_output=True, text=True, cwd=folder, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("[")]


def test_a_replica_gets_all_its_gpus_of_its_kind_on_one_node_or_none() -> None:
    given = {(ranks, kind): gpus for ranks, kind, gpus in answers_of("placement_host.py")}
    assert [len(given[ranks, "L40S"].split(",")) for ranks in (1, 2, 4)] == [1, 2, 4]
    assert given[8, "L40S"] is None
    assert given[2, "H100"] is None
