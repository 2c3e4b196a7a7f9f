"""1,400 drawn command lines end without a traceback (`command_lines.py` draws and runs them)."""

import json
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.cli.command_lines import LIMIT_S, commands, into_full_disk

SEED, COUNT = 2026, 1_400
DOCUMENTED = (0, 1, 2, 3, 130)
"""3: `raylane tune` and `plan --against`; 130: after Ctrl-C, which a command gets that takes too long."""
ALONE = [*(("--help",), ("key",), ("spec", "schema")), ("spec", "check", "infra/specs/local.yaml")]


def test_the_generator_knows_every_command_and_option() -> None:
    found = {" ".join(one.words): {each.option for each in one.parameters} for one in commands()}
    assert {"up", "status", "spec check", "simulate"} < set(found)
    assert {"--trace", "--costs", "--replicas"} < found["simulate"]


@pytest.mark.long
@pytest.mark.timeout(COUNT * LIMIT_S)
def test_no_command_line_ends_in_a_traceback(tmp_path: Path) -> None:
    arguments = ["--seed", str(SEED), "--count", str(COUNT), "--keep", str(tmp_path)]
    done = subprocess.run(
        [sys.executable, "-m", "tests.cli.command_lines", *arguments], stdout=subprocess.PIPE, text=True, check=True
    )
    found: dict[int, dict[str, Any]] = {}
    for line in done.stdout.splitlines():
        said = json.loads(line)
        found.setdefault(said["number"], {}).update(said)
    assert len(found) == COUNT
    bad = [one for one in found.values() if one["escaped"] or "Traceback (most" in one["out"] + one["err"]]
    assert not bad, json.dumps(bad[:3], indent=1)
    assert {one["status"] for one in found.values()} <= set(DOCUMENTED)
    silent = [one for one in found.values() if one["status"] in (1, 2, 3) and not (one["out"] + one["err"]).strip()]
    assert not silent, json.dumps(silent[:3], indent=1)


@pytest.mark.long
@pytest.mark.timeout(600)
def test_nor_does_one_whose_output_has_no_room(tmp_path: Path) -> None:
    """In processes of their own: Python itself writes what is left when it ends."""
    helps = [(*one.words, "--help") for one in commands()]
    for arguments in [*ALONE, *random.Random(SEED).sample(helps, 20)]:
        done = into_full_disk(arguments)
        assert done.returncode == 1, (arguments, done.stderr)
        assert done.stderr.splitlines()[-1] == "error: the output cannot be written: No space left on device", arguments
