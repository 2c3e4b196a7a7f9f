"""The highest rate against queueing theory, and what must hold of any: tighter SLOs, slower engines and fewer replicas
never hold more."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from deployments.engine_model.cost_file import CostBasis
from deployments.engine_model.cost_model import CostModel, line, plain_attention, slowed
from deployments.engine_model.limits import EngineModelLimits
from deployments.scheduling import Order, SchedulingPolicy
from planning.capacity.judging import RateBound, RateSlo
from planning.capacity.rates import RateSearch, highest_rate
from planning.capacity.sampling import poisson
from planning.memo import Memo
from planning.simulator.cell import CellSettings
from planning.simulator.workload import Workload, plain_workload
from planning.uncertainty import CostRange

STEP_S, TOKENS = 0.01, 10
CONSTANT = CostModel(line(STEP_S, 0.0), line(0.0, 0.0), plain_attention(0.0, 0.0))
"""Every step takes the same time."""
GPU = CostModel(line(0.006, 1.2e-5), line(0.0, 2e-6), plain_attention(1.2e-9, 2e-12))
pytestmark = pytest.mark.whole

ONE_PLACE = CellSettings(1, EngineModelLimits(1, 64, 10_000), SchedulingPolicy(), queue_wait_s=1_000.0)
CELL = CellSettings(1, EngineModelLimits(8, 2_048, 100_000), SchedulingPolicy(max_waiting=100_000))
QUICK = RateSearch(requests=400, seeds=(0,), tolerance=0.02)
ROUGH = RateSearch(requests=100, seeds=(0,), tolerance=0.2)


def equal(count: int = 50, prompt: int = 1, output: int = TOKENS) -> Workload:
    return plain_workload(np.arange(count, dtype=np.float64), np.full(count, prompt), np.full(count, output))


def mixed(count: int = 400, seed: int = 0) -> Workload:
    rng = np.random.default_rng(seed)
    prompt, output = (np.minimum(rng.lognormal(mu, 0.8, count).astype(np.int64) + 1, 1_000) for mu in (5.0, 3.5))
    return plain_workload(np.arange(count, dtype=np.float64), prompt, output)


def slos(ttft_s: float, share: float = 0.9, itl_s: float | None = None) -> dict[str, RateSlo]:
    return {"interactive": RateSlo(ttft_s, share, itl_s)}


def waits_at_most(services: float, load: float) -> float:
    """The share of an M/D/1 queue's customers that wait at most so many service times (Erlang 1909; Tijms, A First
    Course in Stochastic Models, 2003, section 9.6)."""
    terms = (
        (load * (k - services)) ** k / math.factorial(k) * math.exp(-load * (k - services))
        for k in range(int(services) + 1)
    )
    return (1 - load) * sum(terms)


def load_of(services: float, share: float) -> float:
    low, high = 0.0, 1.0
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if waits_at_most(services, middle) >= share else (low, middle)
    return low


@pytest.mark.parametrize(
    ("services", "share", "requests"), [pytest.param(1.5, 0.9, 5_000, marks=pytest.mark.long), (3.0, 0.95, 1_500)]
)
def test_one_place_and_equal_requests_are_the_md1_queue(services: float, share: float, requests: int) -> None:
    service_s = STEP_S * TOKENS
    search = RateSearch(requests=requests, seeds=(0, 1), tolerance=0.02)
    found = highest_rate(
        ONE_PLACE, CONSTANT, equal(), slos(services * service_s + 1.001 * STEP_S, share), search=search
    )
    assert found.bound is RateBound.TTFT
    assert found.per_s * service_s == pytest.approx(load_of(services, share), rel=0.05)


def test_with_a_long_ttft_the_capacity_binds() -> None:
    found = highest_rate(ONE_PLACE, CONSTANT, equal(), slos(15.0), search=QUICK)
    assert found.bound is RateBound.CAPACITY
    assert found.per_s == pytest.approx(1 / (STEP_S * TOKENS), rel=0.04)


def test_a_ttft_below_one_step_holds_no_rate() -> None:
    found = highest_rate(ONE_PLACE, CONSTANT, equal(), slos(0.9 * STEP_S), search=QUICK)
    assert (found.per_s, found.low, found.high, found.bound) == (0.0, 0.0, 0.0, RateBound.TTFT)


def test_an_itl_binds_where_steps_grow_with_the_batch() -> None:
    cost = CostModel(line(0.0, 0.002), line(0.0, 0.0), plain_attention(0.0, 0.0))
    large = replace(CELL, limits=replace(CELL.limits, sequences=32))
    free, bound = (
        highest_rate(large, cost, equal(prompt=10, output=50), slos(2.0, itl_s=itl_s), search=QUICK)
        for itl_s in (None, 0.02)
    )
    assert bound.bound is RateBound.ITL
    assert 0 < bound.per_s < free.per_s


def per_s(**changes: Any) -> float:
    cell, cost, slo = changes.get("cell", CELL), changes.get("cost", GPU), changes.get("slo", slos(0.3))
    return highest_rate(cell, cost, mixed(), slo, search=QUICK).per_s


def test_less_is_never_held_better() -> None:
    base = per_s()
    assert per_s(slo=slos(0.1)) < base
    assert per_s(slo=slos(0.3, 0.99)) < base
    assert per_s(cost=slowed(GPU, 1.2)) < base
    assert per_s(cell=replace(CELL, replicas=3)) > 2.9 * base


def test_the_front_of_a_request_is_part_of_its_ttft() -> None:
    late = CostModel(GPU.dense, GPU.sequence, GPU.attention, line(0.25, 0.0), 0.02)
    assert per_s(cost=late) < per_s()
    assert per_s(cost=late, slo=slos(0.26)) == 0.0


def test_the_range_is_that_of_the_costs() -> None:
    """By arrival: `shortest` weighs work against seconds, which do not scale with the costs."""
    costs = CostRange(CostBasis.PROFILE, 0.9, 1.1)
    cell = replace(CELL, policy=replace(CELL.policy, order=Order.ARRIVAL))
    found = highest_rate(cell, GPU, mixed(), slos(0.3), search=QUICK, costs=costs)
    assert found.low < found.per_s < found.high
    assert found.low == pytest.approx(found.per_s / 1.1, rel=0.05)
    assert found.high == pytest.approx(found.per_s / 0.9, rel=0.05)


def test_results_are_the_same_every_time_and_remembered(tmp_path: Path) -> None:
    memo = Memo(tmp_path / "memo.jsonl")
    first = highest_rate(CELL, GPU, mixed(), slos(0.3), search=ROUGH, memo=memo)
    assert highest_rate(CELL, GPU, mixed(), slos(0.3), search=ROUGH) == first
    assert len((tmp_path / "memo.jsonl").read_text().splitlines()) == 1
    again = Memo(tmp_path / "memo.jsonl")
    assert highest_rate(CELL, GPU, mixed(), slos(0.3), search=ROUGH, memo=again) == first
    for other in ({"cell": replace(CELL, queue_wait_s=60.0)}, {"cost": slowed(GPU, 1.01)}, {"slo": slos(0.31)}):
        given: dict[str, Any] = {"cell": CELL, "cost": GPU, "slo": slos(0.3)} | other
        highest_rate(given["cell"], given["cost"], mixed(), given["slo"], search=ROUGH, memo=again)
    highest_rate(CELL, GPU, mixed(seed=1), slos(0.3), search=ROUGH, memo=again)
    assert len(set((tmp_path / "memo.jsonl").read_text().splitlines())) == 5


def test_a_run_has_the_rate_and_the_mean_work_of_its_sample() -> None:
    sample = mixed()
    work = poisson(sample, 5.0, 2_000, 3)
    assert work.arrived_s[-1] == pytest.approx(400.0)
    gaps = np.diff(work.arrived_s)
    assert gaps.std() == pytest.approx(gaps.mean(), rel=0.1)  # exponential
    assert work.prompt_tokens.mean() == pytest.approx(sample.prompt_tokens.mean(), rel=0.01)
    assert work.output_tokens.mean() == pytest.approx(sample.output_tokens.mean(), rel=0.02)
    faster = poisson(sample, 10.0, 2_000, 3)
    assert np.allclose(2 * faster.arrived_s, work.arrived_s)
    assert np.array_equal(faster.prompt_tokens, work.prompt_tokens)
    assert not np.array_equal(poisson(sample, 5.0, 2_000, 4).prompt_tokens, work.prompt_tokens)


def test_prefixes_of_one_prompt_are_not_found_again_in_a_second_round() -> None:
    count = 10
    sample = replace(
        equal(count, prompt=64),
        prefix=tuple((7, 100 + number) for number in range(count)),
        chunk_tokens=16,
        session=np.arange(count),
    )
    work = poisson(sample, 1.0, 3 * count, 0)
    hashes = [work.prefix[number] for number in range(3 * count)]
    assert all(7 in one for one in hashes)
    alone = [hashed for one in hashes for hashed in one if hashed != 7]
    assert len(alone) == len(set(alone))
    assert work.session is not None
    assert len(set(work.session.tolist())) >= 2 * count
