"""Random simulations for `test_compiled.py`, in a process of their own: prints as JSON where the scheduler came from,
what happened, and a digest of each outcome."""

import hashlib
import json
from dataclasses import fields, replace
from itertools import combinations

import numpy as np

from cluster.spec import DEFAULT_GROUP
from deployments.engine_model.cost_model import CostModel, line, plain_attention
from deployments.engine_model.limits import EngineModelLimits
from deployments.scheduling import LanePolicy, SchedulingPolicy, TenantPolicy, scheduler
from planning.simulator.cell import CellSettings, CellSimulator
from planning.simulator.cells import CellsSimulator
from planning.simulator.cells_outcome import CellsOutcome
from planning.simulator.faults import Fault, FaultKind
from planning.simulator.outcome import SimulationOutcome
from planning.simulator.peered_cell import CellPlan
from planning.simulator.workload import Workload
from tests.deployments.peering.setups import CELLS, MODEL, make_spec

_COST = CostModel(line(0.006, 1.2e-5), line(0.0, 2e-6), plain_attention(1.2e-9, 2e-12))
_LANES = (
    LanePolicy("short", 512, weight=8, max_wait_s=2, cap_s=20),
    LanePolicy("medium", 4_096, weight=3, max_wait_s=4, cap_s=20),
    LanePolicy("long", None, weight=1, max_wait_s=8, cap_s=40),
)
_REQUESTS = 3_000
_REPLICAS = 4


def main() -> None:
    """Twelve seeds of one cell, three of three; odd ones schedule asynchronously."""
    outcomes = [_run(seed) for seed in range(12)]
    of_cells = [_run_cells(seed) for seed in range(3)]
    features = {
        "promoted": sum(int(out.promoted.sum()) for out in outcomes),
        "rejected": sum(int((out.cause >= 0).sum()) for out in outcomes),
        "expired": sum(int((~np.isnan(out.expired_s)).sum()) for out in outcomes),
        "failed": sum(int(out.failed.sum()) for out in outcomes),
        "preemptions": sum(out.preemptions for out in outcomes),
        "cached": sum(int(out.cached_tokens.sum()) for out in outcomes),
        "hops": sum(len(out.hops) for out in of_cells),
        "broken": sum(int(out.broken.sum() + out.reset.sum()) for out in of_cells),
    }
    digests = [_digest(out) for out in (*outcomes, *of_cells)]
    print(json.dumps({"file": scheduler.__file__, "features": features, "outcomes": digests}))


def _run(seed: int) -> SimulationOutcome:
    limits = EngineModelLimits(48, 2_048, 24_000, prefix_caching=True, chunk_tokens=64, async_scheduling=seed % 2 == 1)
    policy = SchedulingPolicy(_LANES, max_waiting=400, tenants={"a": TenantPolicy(weight=3.0)})
    settings = CellSettings(_REPLICAS, limits, policy, queue_wait_s=15.0, start_up_s=10.0)
    cell = CellSimulator(settings, _COST, _workload(seed))
    cell.at(15.0, lambda now: cell.fleet.fail(cell.replicas[1], now))
    cell.at(20.0, lambda now: cell.fleet.start(cell.fleet.kinds[DEFAULT_GROUP], now, 10.0))
    cell.at(30.0, lambda now: cell.fleet.drain(cell.replicas[2], now))
    return cell.run()


def _run_cells(seed: int) -> CellsOutcome:
    """The first cell gets most; a partition, and the loss of a peer that comes back."""
    work = replace(_workload(seed), traffic_class=("interactive",) * _REQUESTS, tenant=("",) * _REQUESTS)
    homes = np.random.default_rng(seed).choice(3, _REQUESTS, p=(0.6, 0.2, 0.2))
    limits = EngineModelLimits(48, 2_048, 24_000, prefix_caching=True, chunk_tokens=64, async_scheduling=seed % 2 == 1)
    settings = CellSettings(2, limits, SchedulingPolicy(_LANES, max_waiting=400), queue_wait_s=15.0, start_up_s=10.0)
    faults = (
        Fault(FaultKind.PARTITION, 8.0, 6.0, link=("eu", "us")),
        Fault(FaultKind.REGION_LOSS, 20.0, 10.0, cell="us"),
    )
    plans = [CellPlan(name, MODEL, settings, _COST) for name in CELLS]
    return CellsSimulator(
        make_spec(), plans, work, homes, dict.fromkeys(map(frozenset, combinations(CELLS, 2)), 0.08), faults
    ).run()


def _workload(seed: int) -> Workload:
    """Bursts above capacity; a third of the prompts share beginnings."""
    rng = np.random.default_rng(seed)
    prompt = np.minimum(rng.lognormal(6.5, 1.2, _REQUESTS).astype(np.int64) + 1, 20_000)
    output = np.minimum(rng.lognormal(5.0, 0.8, _REQUESTS).astype(np.int64) + 1, 2_000)
    group = rng.integers(0, 30, _REQUESTS)
    prefix = [
        tuple(range(1_000 * int(one), 1_000 * int(one) + min(40, int(tokens) // 64))) if one < 10 else ()
        for one, tokens in zip(group, prompt, strict=True)
    ]
    arrived_s = np.cumsum(rng.gamma(0.3, 1 / (0.3 * 60), _REQUESTS))
    tenant = ["a" if one else "b" for one in rng.integers(0, 2, _REQUESTS)]
    bounded = np.where(rng.random(_REQUESTS) < 0.5, output, 0)
    classes = ("interactive",) * _REQUESTS
    slo_s = np.full(_REQUESTS, 2.0)
    return Workload(arrived_s, prompt, output, bounded, slo_s, tenant, classes, prefix, 64)


def _digest(outcome: SimulationOutcome | CellsOutcome) -> str:
    digest = hashlib.sha256()
    for one in fields(outcome):
        value = getattr(outcome, one.name)
        digest.update(value.tobytes() if isinstance(value, np.ndarray) else repr(value).encode())
    return digest.hexdigest()
