"""`raylane calibrate` and `rehearse` without an engine: what they refuse before anything starts, and an engine too slow
for the warm-up."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cli.bench.answer import Sample
from cli.bench.load import LoadResult
from cli.bench.prompts import TokenIds
from cli.rehearse_live import LiveRunner, as_sent, live_run
from cluster.files import shipped
from planning.rehearsal import rehearsed
from planning.simulator.workload import plain_workload
from planning.workload.traces import read_trace
from tests.commands import ran

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
    result = ran(*[{"LOCAL": LOCAL, **files}.get(word, word) for word in command.split()], code=2)
    assert said in result.stderr + result.stdout
    assert not Path(files["OUT"]).exists()


class Fake:
    """A cell that is always at rest, and its client."""

    def __init__(self) -> None:
        self.sent = 0

    async def send(self, body: Any) -> Sample:
        self.sent += 1
        return Sample(0.0, 0.1, None, None, np.array([]), 1, None, None)

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


def test_a_live_run_has_its_requests_as_they_were_sent_and_tells_which_queued(tmp_path: Path) -> None:
    """The client was late with the third; the second waited in its lane, by the gateway's account."""
    work = plain_workload(np.array([0.0, 1.0, 2.0]), np.full(3, 8), np.full(3, 4))
    sent_s, ttft_s = (70.0, 71.0, 72.5), (0.1, 0.4, 0.2)
    samples = tuple(
        Sample(at, at + 1, ttft, 0.3, np.full(3, 0.1), 4, None, None) for at, ttft in zip(sent_s, ttft_s, strict=True)
    )
    ledger = {
        number: {
            "stages_s": {"lane": 0.0, "prefill": 0.1, "decode": 0.3},
            "lane": "short",
            "decisions": [{"at_s": 0.0, "verdict": verdict, "reason": "x"}, {"verdict": "placed", "reason": "x"}],
        }
        for number, verdict in enumerate(("admitted", "queued", "admitted"))
    }
    outcome = LoadResult(samples, 3.5, 0.5)
    run = live_run(outcome, ledger, ("short",))
    assert run.queued.tolist() == [False, True, False]
    assert run.ttft_s.tolist() == list(ttft_s)
    assert as_sent(work, outcome).arrived_s.tolist() == [0.0, 1.0, 2.5]
