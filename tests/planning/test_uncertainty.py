"""The range of the costs follows from what they rest on; that of an answer from runs at both of its ends."""

import numpy as np
import pytest

from cluster.spec import Model, Pool
from deployments.engine_model.cost_file import CostBasis, CostFile, CostSource
from planning.answer import Answer, Variant, capacity_of, neighbour_rows, variants
from planning.simulation import Simulation, simulation_of
from planning.simulator.outcome import Figures
from planning.simulator.workload import Workload, plain_workload
from planning.uncertainty import cost_range, ranges
from tests.planning.tune import cases

MODEL: Model = cases.spec().models[0]
POOL: Pool = cases.spec().regions[0].pools[0]


def costs(basis: str, hardware: str = "2 x L40S", model: str = "demo") -> CostFile:
    return cases.costs().model_copy(update={"basis": basis, "hardware": hardware, "model": model})


@pytest.mark.parametrize(
    ("file", "origin"),
    [
        (costs("measured", "this machine"), CostBasis.CALIBRATED),
        (costs("profile"), CostBasis.PROFILE),
        (costs("profile", "1 x H100 SXM"), CostBasis.OTHER_PROFILE),
        (costs("profile", model="another"), CostBasis.OTHER_PROFILE),
        (costs("measured", model="another"), CostBasis.OTHER_PROFILE),
        (costs("roofline"), CostBasis.DATA_SHEET),
    ],
)
def test_the_range_follows_from_the_origin(file: CostFile, origin: CostBasis) -> None:
    found = cost_range(file, MODEL, POOL)
    assert found.origin is origin
    assert found.low < 1 < found.high
    assert origin.value.removeprefix("calibrated ") in str(found)


def test_a_file_that_names_its_sources_has_their_range_unless_it_is_of_another_gpu() -> None:
    source = CostSource(part="kernels", basis=CostBasis.DATA_SHEET, share=1.0, low=0.9, high=1.2)
    file = costs("roofline").model_copy(update={"sources": (source,)})
    found = cost_range(file, MODEL, POOL)
    assert (found.low, found.high) == (pytest.approx(0.9), pytest.approx(1.2))
    other = file.model_copy(update={"basis": "profile", "hardware": "1 x H100 SXM"})
    assert cost_range(other, MODEL, POOL) == cost_range(costs("profile", "1 x H100 SXM"), MODEL, POOL)


def figures(ttft_ms: float, in_time: float = 1.0) -> Figures:
    return Figures("all", 10, 0, 0, 0, 0, ttft_ms, ttft_ms, ttft_ms, 5.0, float("nan"), in_time)


def test_a_range_holds_the_run_itself_and_both_ends() -> None:
    found = ranges([[figures(100)], [figures(60, 0.9)], [figures(70, 0.8)]])
    assert found[0]["ttft_p50_ms"] == (60, 100)
    assert found[0]["answered_in_time"] == (0.8, 1.0)
    assert "queued_mean_ms" not in found[0]  # of which some run has none


def work(rate: float, count: int = 200) -> Workload:
    rng = np.random.default_rng(1)
    prompt, output = np.full(count, 300), np.full(count, 40)
    return plain_workload(np.cumsum(rng.exponential(1 / rate, count)), prompt, output, 2.0)


def simulation(rate: float, scales: bool, replicas: int = 2) -> Simulation:
    spec = cases.spec()
    return simulation_of(spec, spec.models[0], {"default": cases.costs()}, work(rate), replicas, scales)


def answer(case: Simulation) -> Answer:
    likely = cost_range(cases.costs(), MODEL, POOL)
    runs = {variant: one.figures(one.run()) for variant, one in variants(case, likely, True).items()}
    return Answer(runs, likely)


@pytest.mark.whole
def test_a_queue_makes_more_of_an_error_of_the_costs() -> None:
    calm, busy = (answer(simulation(rate, scales=False)) for rate in (0.5, 8.0))

    def width(found: Answer) -> float:
        low, high = found.ranges[-1]["ttft_p50_ms"]
        return (high - low) / found.lines[-1].ttft_p50_ms

    assert 0.08 < width(calm) < 0.12  # 5 % either way, as no request waits
    assert width(busy) > 2 * width(calm)
    for found in (calm, busy):
        for line, of in zip(found.lines, found.ranges, strict=True):
            assert all(low <= getattr(line, name) <= high for name, (low, high) in of.items())


@pytest.mark.whole
def test_near_the_capacity_it_is_stated_with_its_range() -> None:
    likely = cost_range(cases.costs(), MODEL, POOL)
    found = {}
    for rate in (0.5, 40.0):
        case = simulation(rate, scales=False)
        capacity = capacity_of(case, likely, case.run())
        assert capacity is not None
        assert (capacity.low, capacity.high) == (capacity.per_s / likely.high, capacity.per_s / likely.low)
        assert capacity.offered == pytest.approx(rate, rel=0.25)
        found[rate] = capacity
    assert (found[0.5].is_near, found[40.0].is_near) == (False, True)
    late = simulation(2 * found[0.5].per_s, scales=False).run()
    done = late.finished_s[~np.isnan(late.finished_s)]
    assert len(done) / done.max() == pytest.approx(found[0.5].per_s, rel=0.3)
    policy = simulation(1.0, scales=True)
    assert capacity_of(policy, likely, policy.run()) is None


@pytest.mark.whole
def test_one_replica_more_waits_less_and_one_fewer_more() -> None:
    found = answer(simulation(4.0, scales=False))
    rows = neighbour_rows(found)
    assert [row[0] for row in rows] == ["one replica fewer", "as the spec says", "one replica more"]
    waits = [found.runs[one].lines[-1].ttft_p90_ms for one in (Variant.ONE_FEWER, Variant.THIS, Variant.ONE_MORE)]
    assert waits[0] > waits[1] >= waits[2]
    assert set(found.neighbours_as_json()) == {"one_fewer", "one_more"}


def test_there_is_no_fewer_than_one() -> None:
    single = simulation(1.0, scales=False, replicas=1)
    assert single.with_more(-1) is None
    assert list(variants(single, None, True)) == [Variant.THIS, Variant.ONE_MORE]
    assert list(variants(single, None, False)) == [Variant.THIS]


def test_both_bounds_of_a_policy_move() -> None:
    case = simulation(1.0, scales=True)
    more = case.with_more(1)
    assert more is not None
    before, after = case.setup.bounds, more.setup.bounds
    assert (after.minimum, after.maximum) == (before.minimum + 1, before.maximum + 1)
    fewer = case.with_more(-1)
    assert fewer is not None
    assert fewer.with_more(-1) is None  # at least one is to stay, as the spec says


def test_policies_go_on_believing_the_costs_of_the_file() -> None:
    case = simulation(1.0, scales=True)
    slow = case.at_costs(1.4)
    assert slow.setup is case.setup
    assert slow.cost.step_s((), 4, 1_000, 0) == pytest.approx(1.4 * case.cost.step_s((), 4, 1_000, 0))
