"""The engines of the scenarios, and the load over time in units of them. They are small, so that half an hour of
traffic simulates in about a second, and behave like real ones.

    CHAT        16 sequences, 27 ms a step when full, prompts at 8,000 tokens/s: about 1.5 requests/s of chat a replica
    REASONING   12 sequences, 60 ms a step when full: long answers, about one request in 6 s a replica

The capacity of a replica is measured: a closed loop of more clients than it has room for, through the same simulator. A
load of 1.0 keeps one full replica busy.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from deployments.engine_model.cost_model import CostModel, line, plain_attention
from deployments.engine_model.limits import EngineModelLimits
from deployments.scheduling import LanePolicy, SchedulingPolicy
from planning.simulator.cell import CellSettings, CellSimulator
from planning.simulator.workload import plain_workload
from planning.workload.arrivals import FloatArray
from planning.workload.lengths import IntArray

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


CHAT = Serving(
    "chat",
    EngineModelLimits(16, 2_048, 60_000),
    CostModel(line(0.022, 1.2e-4), line(0.0, 2e-4), plain_attention(2e-8, 1e-10)),
    SchedulingPolicy(
        (LanePolicy("short", 3_000, 8.0, 20.0, 600.0), LanePolicy("long", None, 1.0, 60.0, 600.0)), decode_weight=12.0
    ),
)
REASONING = Serving(
    "reasoning",
    EngineModelLimits(12, 2_048, 120_000),
    CostModel(line(0.0475, 2.4e-4), line(0.0, 8e-4), plain_attention(2e-8, 1e-10)),
    SchedulingPolicy(
        (LanePolicy("short", 6_000, 8.0, 30.0, 3_600.0), LanePolicy("long", None, 1.0, 120.0, 3_600.0)),
        decode_weight=20.0,
    ),
)


def full_rate(serving: Serving, prompt_tokens: IntArray, output_tokens: IntArray) -> float:
    """Requests a second of one replica that is always full, over some hundreds of these requests (their first and last
    fifth do not count)."""
    count = len(prompt_tokens)
    work = plain_workload(np.zeros(count), prompt_tokens, output_tokens, _NO_END_S, bounded=False)
    settings = CellSettings(
        1, serving.limits, serving.policy, queue_wait_s=_NO_END_S, clients=2 * serving.limits.sequences
    )
    ends = np.sort(CellSimulator(settings, serving.cost, work).run().finished_s)
    first, last = count // 5, count - count // 5 - 1
    return float((last - first) / (ends[last] - ends[first]))
