"""The ladder under twice a cell's capacity, and at 0.8 of it; three classes.

Two replicas hold all SLOs up to 7.5 requests a second (at 8 the batches' p90 is beyond a minute). Of the work, prompt
and four times the output, interactive requests are 14 %, completions 20 %, batches 66 %. At 15 a second that is, of
the capacity, 0.27 + 0.41 + 1.32 = 2.0; with clamped batches (1,112 tokens instead of 2,200) 1.35; without batches
0.68, so the second step is the first that can hold the others' SLOs. The cell still has the batches' sequences then,
which is why a step or two more may follow.
"""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from numpy.typing import NDArray

from autoscaling.policies.backlog.policy import BacklogPolicy, BacklogSettings
from autoscaling.policies.policy import ReplicaProfile
from autoscaling.scaler.autoscaler import Autoscaler
from autoscaling.scaler.decision import Bounds
from deployments.engine_model.cost_model import CostModel, line, plain_attention
from deployments.engine_model.limits import EngineModelLimits
from deployments.scheduling import LanePolicy, RejectCause, Rung, SchedulingPolicy
from deployments.scheduling.ladder import LadderStep
from planning.simulator.cell import CellSettings, CellSimulator
from planning.simulator.outcome import CAUSES, SimulationOutcome
from planning.simulator.scaling import SimulatedScaling
from planning.simulator.workload import Workload, plain_workload

COST = CostModel(line(0.025, 2e-4), line(0.0, 4e-5), plain_attention(1e-7, 4e-10), line(0.003, 1e-4), 0.002)
LIMITS = EngineModelLimits(sequences=32, step_tokens=1_024, kv_tokens=100_000)
LANES = (
    LanePolicy("short", 384, 16, 60, 60),
    LanePolicy("medium", 1_536, 8, 120, 120),
    LanePolicy("long", None, 1, 240, 300),
)
CLASSES = ("interactive", "completion", "batch")
SLO_S, ALLOWED = np.array([1.0, 3.0, 60.0]), (0.05, 0.05, 0.1)
PROMPT, OUTPUT, SHARES = np.array([100, 200, 600]), np.array([60, 120, 400]), (0.4, 0.3, 0.3)
STEPS = (
    LadderStep(Rung.CLAMP, "batch", 128),
    LadderStep(Rung.SHED, "batch"),
    LadderStep(Rung.CLAMP, "completion", 64),
    LadderStep(Rung.SHED, "completion"),
)
CAPACITY = 7.5
BEFORE_S, OVERLOAD_S, AFTER_S = 120, 300, 180
END_S = BEFORE_S + OVERLOAD_S
pytestmark = pytest.mark.whole


def traffic(seed: int, *phases: tuple[float, float]) -> tuple[Workload, NDArray[np.int64]]:
    """Seconds and shares of the capacity; and the class of each request."""
    rng, times, begin = np.random.default_rng(seed), [], 0.0
    for seconds, load in phases:
        times.append(begin + np.sort(rng.uniform(0, seconds, rng.poisson(seconds * load * CAPACITY))))
        begin += seconds
    arrived = np.concatenate(times)
    of = rng.choice(3, len(arrived), p=SHARES)
    prompt, output = (
        np.maximum(1, (mean[of] * rng.lognormal(0, 0.4, len(of))).astype(np.int64)) for mean in (PROMPT, OUTPUT)
    )
    work = plain_workload(arrived, prompt, output)
    return replace(work, ttft_slo_s=SLO_S[of], traffic_class=tuple(CLASSES[one] for one in of)), of


def run(work: Workload, steps: tuple[LadderStep, ...] = STEPS) -> tuple[SimulationOutcome, list[tuple[float, int]]]:
    """The outcome, and how many steps were in force from when on. Replicas are asked for, and none comes in time."""
    policy = SchedulingPolicy(LANES, max_waiting=10_000, ladder=steps, allowed=dict(zip(CLASSES, ALLOWED, strict=True)))
    scaler = Autoscaler(BacklogPolicy(BacklogSettings(), ReplicaProfile(LIMITS, 4.0, COST, 60.0)), Bounds(2, 40))
    scaling = SimulatedScaling(scaler, float(work.arrived_s[-1]))
    seen = [(0.0, 0)]

    def look(cell: CellSimulator, now: float) -> float:
        at = cell.scheduler.ladder.at
        if at != seen[-1][1]:
            seen.append((now, at))
        return now + 0.5

    cell = CellSimulator(CellSettings(2, LIMITS, policy, start_up_s=1e5, scaling=scaling), COST, work, sample=look)
    return cell.run(), seen[1:]


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.long) for seed in (1, 2))])
def test_twice_the_capacity_for_five_minutes(seed: int) -> None:
    work, of = traffic(seed, (BEFORE_S, 0.7), (OVERLOAD_S, 2.0), (AFTER_S, 0.7))
    out, seen = run(work)
    at = [0, *(at for _, at in seen)]
    assert {abs(after - before) for before, after in pairwise(at)} == {1}, "one after another"
    fired = [(now, after) for (now, after), before in zip(seen, at, strict=False) if after > before]
    assert BEFORE_S < fired[0][0] < BEFORE_S + 40
    assert max(after for _, after in fired) >= 2
    for step in range(len(STEPS)):
        times = [now for now, after in fired if after == step + 1]
        assert all(later - earlier >= 60 for earlier, later in pairwise(times))
    assert at[-1] == 0
    assert seen[-1][0] < END_S + 120
    during = (out.arrived_s >= BEFORE_S) & (out.arrived_s < END_S)
    met = np.nan_to_num(out.ttft_s, nan=np.inf) <= work.ttft_slo_s
    first = met[during & (of == 0)].mean()
    without, _ = run(work, ())
    asked, asked_without = (max(one.requested for one in each.scalings) for each in (out, without))
    late = np.nan_to_num(without.ttft_s, nan=np.inf) > work.ttft_slo_s
    print(
        f"{seed}: {[(round(now - BEFORE_S), after) for now, after in seen]}; interactive {first:.3f}, without a ladder"
    )
    print(f"{1 - late[during & (of == 0)].mean():.3f}; replicas asked for: {asked}, without a ladder {asked_without}")
    assert first >= 1 - ALLOWED[0]
    assert abs(asked - asked_without) <= 1
    assert set(out.cause[out.cause >= 0]) == {CAUSES.index(RejectCause.SHED)}


@pytest.mark.long
def test_an_hour_at_four_fifths_of_the_capacity() -> None:
    _, seen = run(traffic(5, (3_600, 0.8))[0])
    assert seen == []
