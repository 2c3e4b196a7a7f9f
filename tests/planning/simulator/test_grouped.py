"""A simulated cell with several groups: each scales by what it is to carry, nothing runs where it does not fit, and
Serve's pair decides the same with the same signals."""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from autoscaling.from_spec import ScalingSetup, setup_of
from autoscaling.shadow.pair import Pair
from cli.options import length_limits
from cluster.files import shipped
from cluster.spec import load_spec
from deployments.engine_model.cost_file import read_cost_file
from deployments.engine_model.cost_model import CostModel, line, plain_attention
from deployments.engine_model.limits import EngineModelLimits
from deployments.scheduling import LanePolicy, SchedulingPolicy
from planning.simulation import simulation_of
from planning.simulator.cell import CellSettings, CellSimulator
from planning.simulator.groups import SimulatedGroup
from planning.simulator.outcome import SimulationOutcome
from planning.simulator.scaling import SimulatedScaling
from planning.simulator.workload import Workload, plain_workload, workload_of
from planning.workload.trace import Trace
from tests.autoscaling.setups import Watched, spec_of

pytestmark = pytest.mark.whole

COST = CostModel(line(0.03, 2e-4), line(0.0, 3e-5), plain_attention(3e-8, 1e-10))
LIMITS = EngineModelLimits(16, 2_048, 60_000)
CONTEXTS = {"small": 4_096, "large": 16_384}
POLICY = SchedulingPolicy(
    (LanePolicy("short", 2_048, 8, 10, 600), LanePolicy("long", None, 1, 60, 600)),
    groups={"short": ("small", "large"), "long": ("large",)},
    contexts=CONTEXTS,
)
SPAN_S, STEP_S = 900.0, 300.0
Ran = tuple[SimulationOutcome, dict[str, Watched]]


def setup(minimum: int, maximum: int) -> ScalingSetup:
    spec = spec_of(minimum=minimum, maximum=maximum, backlog={"down_after_s": 60})
    made = setup_of(spec, spec.models[0], spec.regions[0], start_up_s=30.0)
    return replace(made, replica_profile=replace(made.replica_profile, cost=COST, limits=LIMITS))


def scaling(minimum: int, maximum: int) -> tuple[SimulatedScaling, Watched]:
    made = setup(minimum, maximum)
    watched = Watched(made.policy.make(made.replica_profile), made.bounds, 30.0)
    return SimulatedScaling(watched, SPAN_S, {}, own_overflow=made.overflow()), watched


def work(short_per_s: float, long_per_s: float) -> Workload:
    """Short requests from second 300 on, long ones all the time."""
    short, long = np.arange(STEP_S, SPAN_S, 1 / short_per_s), np.arange(5.0, SPAN_S, 1 / long_per_s)
    arrived = np.concatenate([short, long])
    prompts = np.concatenate([np.full(len(short), 500), np.full(len(long), 6_000)])
    order = np.argsort(arrived, kind="stable")
    answers = np.full(len(arrived), 100)
    return plain_workload(arrived[order], prompts[order], answers, 2.0)


def run(small_maximum: int, traffic: Workload, *, small_minimum: int = 1, drained_s: float = math.inf) -> Ran:
    small, watched_small = scaling(small_minimum, small_maximum)
    large, watched_large = scaling(1, 8)
    groups = (
        SimulatedGroup(max(1, small_minimum), LIMITS, COST, CONTEXTS["small"], 30.0, small, name="small"),
        SimulatedGroup(1, LIMITS, COST, CONTEXTS["large"], 30.0, large, name="large"),
    )
    cell = CellSimulator(CellSettings(0, LIMITS, POLICY, groups=groups), COST, traffic)
    if drained_s < math.inf:
        cell.at(drained_s, lambda now: cell.fleet.drain(cell.replicas[0], now))
    return cell.run(), {"small": watched_small, "large": watched_large}


def largest(watched: Watched) -> int:
    return max(decision.requested for _, decision in watched.seen)


@pytest.fixture(scope="module")
def free() -> Ran:
    """The small group may grow as it needs."""
    return run(8, work(9.0, 0.2))


@pytest.fixture(scope="module")
def bounded() -> Ran:
    """The small group may not grow at all."""
    return run(1, work(9.0, 0.2))


def test_only_the_group_that_is_first_grows(free: Ran) -> None:
    _, watched = free
    assert largest(watched["small"]) >= 3
    assert largest(watched["large"]) == 1


def test_the_next_group_grows_by_what_the_first_may_not_carry(free: Ran, bounded: Ran) -> None:
    _, watched = bounded
    assert largest(watched["small"]) == 1
    needed = largest(free[1]["small"])
    assert needed - 2 <= largest(watched["large"]) <= needed + 1


def test_nothing_runs_where_it_does_not_fit(bounded: Ran) -> None:
    out, _ = bounded
    groups = np.array([life.group for life in out.lifetimes])
    ran = groups[out.replica[out.replica >= 0]]
    assert {str(name) for name in ran[out.prompt_tokens[out.replica >= 0] > CONTEXTS["small"]]} == {"large"}
    assert set(out.replica_s_of) == {"small", "large"}
    assert sum(out.replica_s_of.values()) == pytest.approx(out.replica_s)


@pytest.mark.parametrize("context", [16_384, 32_768])
def test_what_the_kv_cache_of_one_group_does_not_hold_runs_on_another(context: int) -> None:
    spec = load_spec(shipped("specs/two-groups.yaml"))
    (model,) = spec.models
    cheap, dear = model.groups
    cheap = cheap.model_copy(update={"settings": cheap.settings.model_copy(update={"max_model_len": context})})
    model = model.model_copy(update={"groups": (cheap, dear)})
    spec = spec.model_copy(update={"models": (model,)})
    costs = {view.group: read_cost_file(Path(str(spec.costs_of(view)))) for view in model.views}
    engine = costs["cheap"].engine.model_copy(update={"kv_tokens": 12_800})
    costs["cheap"] = costs["cheap"].model_copy(update={"engine": engine})
    trace = Trace(np.arange(8.0), np.tile([500, 14_000], 4), np.full(8, 100))
    requests = workload_of(trace, spec, model, length_limits(model, costs, False))
    out = simulation_of(spec, model, costs, requests, None, False).run()
    groups = [life.group for life in out.lifetimes]
    assert [groups[number] for number in out.replica] == ["cheap", "dear"] * 4


def test_the_next_group_serves_when_the_first_is_gone() -> None:
    """The small group's only replica drains, and its successors do not start in time."""
    out, _ = run(1, work(2.0, 0.2), drained_s=400.0)
    groups = np.array([life.group for life in out.lifetimes])
    short = out.prompt_tokens == 500
    soon = short & (out.arrived_s > 401.0) & (out.arrived_s < 425.0)
    assert not np.isnan(out.first_s[soon]).any()
    assert set(groups[out.replica[soon]]) == {"large"}


def test_serves_pair_decides_the_same_by_group(bounded: Ran) -> None:
    for watched in bounded[1].values():
        pair = Pair(setup(1, watched.bounds.maximum))
        assert any(decision.changes for _, decision in watched.seen) == (watched.bounds.maximum > 1)
        for signals, decision in watched.seen:
            assert pair.decide(signals) == decision
