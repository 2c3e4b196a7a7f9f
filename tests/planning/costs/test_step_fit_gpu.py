"""The fit of steps, with a simulated GPU engine as the subject, whose true costs are known."""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest

from deployments.engine_model.cost_model import Chunk, CostModel
from deployments.engine_model.limits import EngineModelLimits
from planning.costs.recorded_run import run_engine
from planning.costs.roofline import roofline
from planning.costs.step_fit import fit_steps
from planning.costs.steps import StepSample
from planning.simulator.outcome import SimulationOutcome
from planning.simulator.workload import Workload, plain_workload
from tests.planning.fit.configs import LLAMA_8B, QWEN3_30B_A3B, plan_on

LIMITS = EngineModelLimits(128, 2_048, 400_000)
LOADS = (0.5, 2.0, 5.0, 10.0, 20.0, 40.0, 80.0)
"""Requests a second that the steps are taken at: from idle to full."""


@dataclass(frozen=True)
class LoggedCosts(CostModel):
    """Costs that write down which steps were asked for; of a run of decodes, its first and its last one."""

    steps: list[StepSample] = field(default_factory=list)

    def step_s(
        self, chunks: Iterable[Chunk], decodes: int, kv_tokens: float, completing: int, drafted: int = 0
    ) -> float:
        parts = list(chunks)
        seconds = super().step_s(parts, decodes, kv_tokens, completing, drafted)
        if parts:
            tokens = sum(part.tokens for part in parts)
            self.steps.append(StepSample(len(parts), tokens, parts[0].past, decodes, kv_tokens, seconds))
        return seconds

    def run_s(self, steps: int, decodes: int, kv_tokens: float) -> float:
        for ahead in {0, steps - 1} if decodes else ():
            read = kv_tokens + ahead * decodes
            self.steps.append(StepSample(0, 0, 0, decodes, read, super().run_s(1, decodes, read)))
        return super().run_s(steps, decodes, kv_tokens)


def work(rate: float, count: int, seed: int) -> Workload:
    rng = np.random.default_rng(seed)
    prompt = np.exp(rng.normal(6.2, 1.0, count)).clip(1, 8_000).astype(np.int64)
    output = np.exp(rng.normal(5.3, 0.8, count)).clip(2, 1_500).astype(np.int64)
    return plain_workload(np.cumsum(rng.exponential(1 / rate, count)), prompt, output)


def figures(out: SimulationOutcome) -> dict[str, float]:
    found = {f"TTFT p{level}": float(np.percentile(out.ttft_s, level)) for level in (50, 90)}
    return found | {"TPOT mean": float(np.nanmean(out.tpot_s)), "TPOT p90": float(np.nanpercentile(out.tpot_s, 90))}


@pytest.mark.whole
@pytest.mark.parametrize(
    ("config", "gpu"),
    [(LLAMA_8B, "h100"), (LLAMA_8B, "l40s"), (QWEN3_30B_A3B, "h100")],
    ids=["h100", "l40s", "experts"],
)
def test_the_costs_of_a_gpu_are_found_from_its_steps(config: dict[str, Any], gpu: str) -> None:
    """Each step's time is blurred by 5 %; then other traffic is simulated with the truth and with what was found."""
    true = roofline(plan_on(gpu, config)).model
    logged = LoggedCosts(true.dense, true.sequence, true.attention)
    for seed, rate in enumerate(LOADS):
        run_engine(LIMITS, logged, work(rate, 250, seed))
    blur = np.random.default_rng(7).lognormal(0, 0.05, len(logged.steps))
    pairs = zip(logged.steps, blur.tolist(), strict=True)
    fitted = fit_steps([replace(one, seconds=one.seconds * by) for one, by in pairs])
    assert fitted.error < 0.08
    assert abs(fitted.bias) < 0.01
    for rate in (2.0, 10.0, 30.0):
        other = work(rate, 600, 99)
        ours, truth = (figures(run_engine(LIMITS, cost, other)) for cost in (fitted.model, true))
        errors = {name: ours[name] / truth[name] - 1 for name in truth}
        assert all(abs(error) < 0.12 for error in errors.values()), (rate, errors)
        assert abs(errors["TPOT mean"]) < 0.05, (rate, errors)
