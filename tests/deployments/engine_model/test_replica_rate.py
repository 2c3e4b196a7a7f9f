"""The rate of a replica: what the simulated engine does with the same costs, and within what its limits and bounds
allow."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from cluster.hardware import gpu_named
from cluster.spec.models import EngineSettings
from deployments.engine_model.cost_model import CostModel, line, plain_attention
from deployments.engine_model.limits import EngineModelLimits, Speculation
from deployments.engine_model.replica_rate import best_point, rate_at, working_point
from planning.costs.recorded_run import run_engine
from planning.costs.roofline import roofline
from planning.fit.architecture import read_architecture
from planning.fit.memory import plan_of
from planning.simulator.workload import Workload, plain_workload
from tests.planning.fit.configs import LLAMA_8B

CPU = CostModel(line(0.004, 2e-5), line(0.0, 1e-5), plain_attention(3e-8, 1e-10))
H100 = roofline(plan_of(read_architecture(LLAMA_8B), EngineSettings(max_model_len=8_192), gpu_named("h100"))).model
SMALL = EngineModelLimits(sequences=16, step_tokens=512, kv_tokens=60_000)
LARGE = EngineModelLimits(sequences=256, step_tokens=2_048, kv_tokens=400_000)


def waiting(isl: float, osl: float, count: int) -> Workload:
    """All there from the start, lengths exponential with these means: the engine is full until it runs dry."""
    rng = np.random.default_rng(1)
    prompt, output = (np.maximum(1, rng.exponential(mean, count)).astype(np.int64) for mean in (isl, osl))
    return plain_workload(np.zeros(count), prompt, output)


@pytest.mark.whole
@pytest.mark.parametrize(
    ("cost", "limits", "isl", "osl"),
    [
        (CPU, SMALL, 200, 100),
        (CPU, SMALL, 1_500, 30),
        (CPU, SMALL, 50, 400),
        (CPU, replace(SMALL, sequences=1), 300, 50),
        (H100, LARGE, 500, 250),
        (H100, LARGE, 3_000, 150),
        (H100, LARGE, 100, 800),
        (H100, LARGE, 6_000, 20),
        (CPU, replace(SMALL, async_scheduling=True), 200, 20),
        (CPU, replace(SMALL, sequences=1, async_scheduling=True), 300, 10),
        (H100, replace(LARGE, async_scheduling=True), 500, 250),
        pytest.param(H100, replace(LARGE, speculation=Speculation((0.7, 0.5, 0.3))), 500, 250, marks=pytest.mark.whole),
        (CPU, replace(SMALL, speculation=Speculation((0.7, 0.5, 0.3)), async_scheduling=True), 200, 100),
    ],
)
def test_a_full_engine_serves_that_many(cost: CostModel, limits: EngineModelLimits, isl: float, osl: float) -> None:
    work = waiting(isl, osl, 60 * limits.sequences if limits.sequences < 100 else 3_000)
    out = run_engine(limits, cost, work)
    full = slice(len(work) // 5, 4 * len(work) // 5)  # neither while it fills nor while it runs dry
    ends = np.sort(out.finished_s)[full]
    measured = (len(ends) - 1) / (ends[-1] - ends[0])
    assert rate_at(limits, cost, float(work.prompt_tokens.mean()), float(work.output_tokens.mean())) == pytest.approx(
        measured, rel=0.15
    )


def best_rate(
    limits: EngineModelLimits,
    cost: CostModel,
    isl: float,
    osl: float,
    itl_s: float | None = None,
    ttft_s: float | None = None,
) -> float:
    point = best_point(limits, cost, isl, osl, itl_s, ttft_s)
    return 0.0 if point is None else point.requests_per_s


@pytest.mark.whole
@pytest.mark.parametrize(("isl", "osl"), [(500.0, 250.0), (3_000.0, 150.0)])
def test_what_the_bound_on_itl_leaves_is_kept_in_an_open_loop(isl: float, osl: float) -> None:
    free = best_point(LARGE, H100, isl, osl)
    assert free is not None
    bound_s = 0.75 * free.step_s
    rate = best_rate(LARGE, H100, isl, osl, bound_s)
    assert 0 < rate < free.requests_per_s
    rng = np.random.default_rng(2)
    work = waiting(isl, osl, 3_000).at(np.cumsum(rng.exponential(1 / (0.9 * rate), 3_000)))
    tpot = run_engine(LARGE, H100, work).tpot_s
    assert np.nanmean(tpot[500:]) == pytest.approx(bound_s, rel=0.3)
    assert np.nanmean(tpot[500:]) < bound_s


@pytest.mark.whole
@example(isl=2_538.0, osl=194.0, itl_s=None, engine=(H100, LARGE))
@given(
    st.floats(1, 20_000),
    st.floats(1, 2_000),
    st.floats(0.001, 0.5) | st.none(),
    st.sampled_from([(CPU, SMALL), (H100, LARGE)]),
)
def test_it_keeps_the_limits_and_falls_with_tighter_bounds(
    isl: float, osl: float, itl_s: float | None, engine: tuple[CostModel, EngineModelLimits]
) -> None:
    cost, limits = engine
    point = best_point(limits, cost, isl, osl, itl_s)
    rate = best_rate(limits, cost, isl, osl, itl_s)
    if point is None:
        assert rate == 0
        return
    assert rate == point.requests_per_s > 0
    assert 1 <= point.sequences <= limits.sequences
    assert point.sequences * (isl + osl) <= limits.kv_tokens
    assert itl_s is None or point.step_s <= itl_s
    assert best_rate(limits, cost, isl, osl, None if itl_s is None else 2 * itl_s) >= rate * (1 - 1e-9)
    assert best_rate(limits, cost, isl, osl, itl_s, 1.01 * point.prefill_s) <= rate * (1 + 1e-9)


def test_nothing_fits() -> None:
    assert rate_at(SMALL, CPU, 100_000, 10) == 0
    assert best_rate(SMALL, CPU, 100, 100, itl_s=0.001) == 0
    assert best_rate(SMALL, CPU, 5_000, 100, ttft_s=0.001) == 0


def test_more_prompts_than_a_step_has_room_for() -> None:
    assert working_point(replace(SMALL, step_tokens=64), CPU, 16, 400, 5) is None
    assert rate_at(replace(SMALL, step_tokens=64), CPU, 400, 5) > 0, "with fewer at a time there is room"


def test_answers_of_one_token_are_all_prefill() -> None:
    point = best_point(SMALL, CPU, 100, 1)
    assert point is not None
    assert point.decodes == 0
