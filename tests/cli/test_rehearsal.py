"""`raylane calibrate` and `rehearse` without an engine: what they refuse before anything starts, and an engine too slow
for the warm-up."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from cli.bench.prompts import TokenIds
from cli.main import app
from cli.rehearse_live import LiveRunner
from cluster.files import shipped
from planning.rehearsal import rehearsed
from planning.workload.traces import read_trace

LOCAL = str(shipped("specs/local.yaml"))


@pytest.fixture
def files(tmp_path: Path) -> dict[str, str]:
    """A trace, a cost file, and paths to write to, one in a folder that does not exist."""
    trace = tmp_path / "trace.jsonl"
    rows = [{"timestamp": 50 * number, "input_length": 8, "output_length": 4, "hash_ids": []} for number in range(10)]
    trace.write_text("\n".join(map(json.dumps, rows)))
    costs = str(shipped("specs/simulated-h100.costs.json"))
    return {
        "TRACE": str(trace),
        "COSTS": costs,
        "OUT": str(tmp_path / "out.json"),
        "NOWHERE": str(tmp_path / "none" / "out.json"),
    }


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


class Fake:
    """A cell that is always at rest, and its client."""

    def __init__(self) -> None:
        self.sent = 0

    async def send(self, body: Any) -> None:
        self.sent += 1

    async def settled(self) -> None:
        pass


async def test_a_sample_smaller_than_the_warm_up_is_enough_to_warm_up(tmp_path: Path) -> None:
    """As of an engine that answers fewer than 200 requests in the time that its capacity is measured."""
    rows = [{"timestamp": 50 * number, "input_length": 8, "output_length": 4, "hash_ids": []} for number in range(40)]
    (tmp_path / "trace.jsonl").write_text("\n".join(map(json.dumps, rows)))
    work = rehearsed(read_trace(tmp_path / "trace.jsonl"), 512, 1.0, 1.0)
    fake: Any = Fake()
    runner = LiveRunner(fake, fake, TokenIds((5, 6, 7)), "demo", ("short",))
    assert await runner.capacity(work, 2, warm_up=200) > 0
    assert fake.sent == 2 * len(work)
