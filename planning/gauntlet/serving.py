"""The engines of the scenarios, and the load over time in units of them. They run few sequences, so that half an hour
of traffic simulates in about a second; everything else is as on a GPU.

    CHAT        Llama-3.1-8B in bf16 on an L40S: 16 sequences, 27 ms a step when full, prompts at 15,000 tokens/s
    REASONING   Llama-3.3-70B in FP8, with an FP8 KV cache, on an RTX PRO 6000: 12 sequences, 55 ms a step when full,
                prompts at 4,600 tokens/s

Their costs are rooflines (`raylane costs`) of 2,048 tokens a step, vLLM's default on GPUs of less than 70 GiB. They are
files, so that results stay comparable while rooflines improve. An output token weighs as many prompt tokens as a full
step's share of a sequence takes prefill time.

The capacity of a replica is measured: a closed loop of more clients than it has room for, through the same simulator. A
load of 1.0 keeps one full replica busy.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from deployments.engine_model.cost_file import read_cost_file
from deployments.engine_model.cost_model import CostModel
from deployments.engine_model.limits import EngineModelLimits
from deployments.scheduling import LanePolicy, SchedulingPolicy
from planning.simulator.cell import CellSettings, CellSimulator
from planning.simulator.workload import Workload
from planning.workload.arrivals import FloatArray

STEP_S = 5.0


@dataclass(frozen=True, slots=True, eq=False)
class LoadCurve:
    """The mean load in replicas, in even steps from second 0; constant beyond the ends."""

    replicas: FloatArray
    step_s: float = STEP_S

    def __call__(self, at_s: float) -> float:
        return float(self.replicas[min(len(self.replicas) - 1, max(0, int(at_s // self.step_s)))])

    @property
    def mean(self) -> float:
        return float(self.replicas.mean())

    def plus(self, other: "LoadCurve") -> "LoadCurve":
        return LoadCurve(self.replicas + other.replicas)

    def levelled(self) -> "LoadCurve":
        """Its mean, at all times: the part of a fast-changing load that replicas can follow."""
        return LoadCurve(np.full_like(self.replicas, self.mean))


def load_of(expected: Callable[[FloatArray], FloatArray], per_replica: float, until_s: float) -> LoadCurve:
    """`expected`: the mean number of requests until a second; `per_replica`: requests a second of a full replica."""
    edges = np.arange(0.0, until_s + STEP_S, STEP_S)
    return LoadCurve(np.diff(expected(np.minimum(edges, until_s))) / STEP_S / per_replica)


def smoothed(arrived_s: FloatArray, per_replica: float, until_s: float, sigma_s: float) -> LoadCurve:
    """The load of recorded arrivals, whose rate is unknown: smoothed by a Gaussian kernel that is corrected at the
    ends."""
    count = int(np.ceil(until_s / STEP_S))
    per_step = np.bincount(np.minimum((arrived_s // STEP_S).astype(np.int64), count - 1), minlength=count).astype(
        np.float64
    )
    reach = int(3 * sigma_s / STEP_S)
    kernel = np.exp(-0.5 * (np.arange(-reach, reach + 1) * STEP_S / sigma_s) ** 2)
    weight = np.convolve(np.ones(count), kernel, mode="full")[reach : reach + count]
    return LoadCurve(np.convolve(per_step, kernel, mode="full")[reach : reach + count] / weight / STEP_S / per_replica)


_NO_END_S = 1e9


@dataclass(frozen=True, slots=True, eq=False)
class Serving:
    """An engine, its step costs, and the lanes in front of it."""

    name: str
    limits: EngineModelLimits
    cost: CostModel
    policy: SchedulingPolicy


def _of_gpu(name: str) -> tuple[EngineModelLimits, CostModel]:
    """What vLLM's resolved configuration has on a GPU: asynchronous scheduling and prefix caching."""
    file = read_cost_file(_ENGINES / f"{name}.costs.json")
    return replace(file.limits(), prefix_caching=True), file.cost_model()


_ENGINES = Path(__file__).with_name("engines")
CHAT = Serving(
    "chat",
    *_of_gpu("chat"),
    SchedulingPolicy(
        (LanePolicy("short", 3_000, 8.0, 20.0, 600.0), LanePolicy("long", None, 1.0, 60.0, 600.0)), decode_weight=26.0
    ),
)
REASONING = Serving(
    "reasoning",
    *_of_gpu("reasoning"),
    SchedulingPolicy(
        (LanePolicy("short", 6_000, 8.0, 30.0, 3_600.0), LanePolicy("long", None, 1.0, 120.0, 3_600.0)),
        decode_weight=21.0,
    ),
)


def full_rate(serving: Serving, work: Workload) -> float:
    """Requests a second of one replica that is always full, over some hundreds of these requests, one after the other
    (their first and last fifth do not count)."""
    count = len(work)
    patient = replace(work, arrived_s=np.zeros(count), ttft_slo_s=np.full(count, _NO_END_S))
    settings = CellSettings(
        1,
        serving.limits.with_prefixes(work.chunk_tokens),
        serving.policy,
        queue_wait_s=_NO_END_S,
        clients=2 * serving.limits.sequences,
    )
    ends = np.sort(CellSimulator(settings, serving.cost, patient).run().finished_s)
    first, last = count // 5, count - count // 5 - 1
    return float((last - first) / (ends[last] - ends[first]))
