"""`raylane calibrate` on the real stack with a simulated engine, whose true costs are known."""

from pathlib import Path

import pytest
import yaml

from deployments.engine_model.cost_file import cost_file, read_cost_file, write_cost_file
from deployments.engine_model.cost_model import Chunk, CostModel, line
from deployments.engine_model.limits import EngineModelLimits
from planning.costs.roofline import roofline
from tests.cli.test_rehearsal_live import raylane
from tests.planning.fit.configs import LLAMA_8B, plan_on

pytestmark = pytest.mark.long

CONTEXT, SEATS, KV_TOKENS = 4_096, 16, 100_000
AROUND_S = 0.020
FORM = 0.02
"""What the fit's form cannot express (`tests/planning/costs/test_calibration.py`); the engine's own times in its log
are free of the machine's noise."""


def test_the_costs_of_a_simulated_engine_are_found_again(tmp_path: Path) -> None:
    """And its overhead around the steps, to which the real gateway adds its own."""
    steps = roofline(plan_on("h100", LLAMA_8B)).model
    true = CostModel(steps.dense, steps.sequence, steps.attention, line(AROUND_S, 0.0), 0.0)
    limits = EngineModelLimits(SEATS, 2_048, KV_TOKENS)
    write_cost_file(tmp_path / "true.json", cost_file("m-simulated", "1 x H100 SXM", "roofline", limits, true))
    settings = {"max_model_len": CONTEXT, "max_num_seqs": SEATS, "max_num_batched_tokens": 2_048, "stream_interval": 16}
    model = {"name": "m-simulated", "source": "nothing", "engine": "simulated", "simulated": {"costs": "true.json"}}
    model["settings"] = settings
    spec = {"version": 1, "name": "calibrated", "regions": [{"name": "here", "pools": [{"name": "cpu"}]}]}
    (tmp_path / "spec.yaml").write_text(yaml.safe_dump(spec | {"models": [model]}), encoding="utf-8")
    out = tmp_path / "costs.json"
    reported = raylane(tmp_path, *("calibrate", str(tmp_path / "spec.yaml"), "--out", str(out), "--minutes", "0.75"))
    assert reported.returncode == 0, reported.stdout + reported.stderr
    assert "steps that were not fitted" in reported.stdout
    assert "not covered: prefix cache hits" in reported.stdout
    found = read_cost_file(out)
    assert found.limits().async_scheduling
    record = found.calibration
    assert record is not None
    assert all(abs(one.bias) < FORM for one in record.residuals if one.steps >= 20), record.residuals
    cost = found.cost_model()
    for decodes, kv in ((1, 100), (8, 4_000), (16, 8_000)):
        assert cost.run_s(1, decodes, kv) == pytest.approx(true.run_s(1, decodes, kv), rel=FORM)
    for tokens, decodes, kv in ((256, 8, 4_000), (1_024, 12, 6_000)):
        true_s = true.step_s([Chunk(tokens, 0)], decodes, kv, 1)
        assert cost.step_s([Chunk(tokens, 0)], decodes, kv, 1) == pytest.approx(true_s, rel=FORM)
    assert cost.front(0) > AROUND_S
