"""The probes of `raylane calibrate` through a real gateway to a simulated engine, whose true costs are known."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from cli import probing
from cli.bench.client import BenchClient
from cli.probing import ProbePlan, Probing
from cluster.spec import Model
from deployments.engine.replica import Identity, ReplicaServer
from deployments.engine.simulated.backend import start_simulated
from deployments.engine_model.cost_file import cost_file, write_cost_file
from deployments.engine_model.cost_model import Chunk, CostModel, line, plain_attention
from deployments.engine_model.limits import EngineModelLimits
from planning.costs.calibration import Measurements, calibration
from planning.costs.probes import Lengths
from tests.deployments.gateway.rig import SECRET, Rig, until

LIMITS = EngineModelLimits(sequences=8, step_tokens=1_024, kv_tokens=50_000)
AROUND_S = 0.020
TRUTH = CostModel(line(0.006, 2e-5), line(0.0, 5e-5), plain_attention(2e-8, 1e-9), line(AROUND_S, 0.0))
FORM = 0.02
"""What the fit's form cannot express; the times in the log are the engine's own, without the machine's noise."""


@dataclass(frozen=True, slots=True)
class RigCell:
    """The gateway of a test as a cell."""

    rig: Rig
    trace_file: Path
    step_logs: Path
    replicas: int = 1

    async def settled(self) -> None:
        await self.rig.settled()


async def probed(
    make_rig: Callable[..., Awaitable[Rig]], folder: Path, budget_s: float, traffic: Lengths | None
) -> tuple[Model, Measurements, list[str]]:
    """The model, what was measured of it, and the levels that were announced."""
    costs, trace_file, steps = folder / "costs.json", folder / "trace.jsonl", folder / "steps"
    write_cost_file(costs, cost_file("m-simulated", "nothing", "roofline", LIMITS, TRUTH))
    content = {
        "name": "m-simulated",
        "source": "org/m",
        "engine": "simulated",
        "simulated": {"costs": str(costs)},
        "settings": {"max_model_len": 2_048, "max_num_seqs": 8, "max_num_batched_tokens": 1_024, "stream_interval": 64},
        "step_log": str(steps),
    }
    model = Model.model_validate(content)
    rig = await make_rig(engines=0, models=[content], trace_file=str(trace_file))
    replica = ReplicaServer(model, Identity("r", "node", "127.0.0.1"), SECRET, start_simulated)
    await replica.start()
    try:
        await rig.directory.register(replica.facts)
        await until(lambda: "r" in rig.owner.scheduler.fleet.by_id)
        plan = ProbePlan("m-simulated", 2_048, 8, None, budget_s, traffic)
        seen: list[str] = []
        async with BenchClient(f"http://127.0.0.1:{rig.port}", "completions") as client:
            probes = Probing(RigCell(rig, trace_file, steps), client, plan)
            return model, await probes.run(lambda text, done: seen.append(text)), seen
    finally:
        await replica.stop()


@pytest.mark.long
async def test_the_costs_of_a_simulated_engine_are_found_again(
    make_rig: Callable[..., Awaitable[Rig]], tmp_path: Path
) -> None:
    """And its overhead before the steps, to which the real gateway adds its own."""
    model, measured, seen = await probed(make_rig, tmp_path, 25.0, None)
    assert seen[:3] == ["one request at a time", "8 clients", "1 client"]
    assert not measured.failed
    assert len(measured.alone) == 60
    found = calibration(model, True, measured, "a test", None)
    record = found.file.calibration
    assert record is not None
    assert all(abs(one.bias) < FORM for one in record.residuals if one.steps >= 20), record.residuals
    cost = found.file.cost_model()
    for decodes, kv in ((1, 100), (4, 800), (8, 2_000)):
        assert cost.run_s(1, decodes, kv) == pytest.approx(TRUTH.run_s(1, decodes, kv), rel=FORM)
    for tokens, decodes, kv in ((256, 4, 800), (900, 7, 1_400)):
        true_s = TRUTH.step_s([Chunk(tokens, 0)], decodes, kv, 1)
        assert cost.step_s([Chunk(tokens, 0)], decodes, kv, 1) == pytest.approx(true_s, rel=FORM)
    assert cost.front(0) > AROUND_S
    assert cost.back_s < AROUND_S


@pytest.mark.long
async def test_open_loops_are_left_out_where_no_answer_ended_in_time(
    make_rig: Callable[..., Awaitable[Rig]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Answers of nine seconds in levels of two: the capacity is not known, and what was measured is kept."""
    for name, short in (("_WARM_UP_S", 0.2), ("_ALONE_REQUESTS", 3), ("_SETTLE_S", 0.1)):
        monkeypatch.setattr(probing, name, short)
    answers = (np.full(10, 32, dtype=np.int64), np.full(10, 1_500, dtype=np.int64))
    _, measured, _ = await probed(make_rig, tmp_path, 14.0, answers)
    unknown = "open loop at 0.85 of the capacity: the capacity is not known"
    assert any(text.startswith(unknown) for text in measured.skipped), measured.skipped
    assert not measured.windows
