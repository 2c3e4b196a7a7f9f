"""What `raylane calibrate` and `rehearse` refuse before anything starts."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from cli.main import app
from cluster.shipped import shipped

LOCAL = str(shipped("specs/local.yaml"))


@pytest.fixture
def files(tmp_path: Path) -> dict[str, str]:
    """A trace, a cost file, and paths to write to, one in a folder that does not exist."""
    trace = tmp_path / "trace.jsonl"
    rows = [{"timestamp": 50 * number, "input_length": 8, "output_length": 4, "hash_ids": []} for number in range(10)]
    trace.write_text("\n".join(map(json.dumps, rows)))
    costs = str(shipped("specs/simulated-h100.costs.json"))
    return {"TRACE": str(trace), "COSTS": costs, "OUT": str(tmp_path / "out.json"), "NOWHERE": str(tmp_path / "none" / "out.json")}


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("calibrate LOCAL --out NOWHERE", "does not exist"),
        ("calibrate LOCAL --out OUT --model nobody", "allowed: demo"),
        ("rehearse LOCAL --trace TRACE --costs TRACE --out OUT", "trace.jsonl"),
        ("rehearse LOCAL --trace TRACE --costs COSTS --out OUT --loads often", "often"),
    ],
)
def test_what_is_wrong_is_said(files: dict[str, str], command: str, said: str) -> None:
    result = CliRunner().invoke(app, [{"LOCAL": LOCAL, **files}.get(word, word) for word in command.split()])
    assert result.exit_code == 2, result.output
    assert said in result.stderr + result.stdout
    assert not Path(files["OUT"]).exists()
