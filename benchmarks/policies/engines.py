"""The engines of the scenarios. They run few sequences, so that half an hour of traffic simulates in about a second;
everything else is as on a GPU.

    CHAT        Llama-3.1-8B in bf16 on an L40S: 16 sequences, 27 ms a step when full, prompts at 15,000 tokens/s
    REASONING   Llama-3.3-70B in FP8, with an FP8 KV cache, on an RTX PRO 6000: 12 sequences, 55 ms a step when full,
                prompts at 4,600 tokens/s

Their costs are rooflines (`raylane costs`) of 2,048 tokens a step, vLLM's default on GPUs of less than 70 GiB. They are
files, so that results stay comparable while rooflines improve. An output token weighs as many prompt tokens as a full
step's share of a sequence takes prefill time.
"""

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from deployments.engine_model.cost_file import read_cost_file
from deployments.engine_model.cost_model import CostModel
from deployments.engine_model.limits import EngineModelLimits
from deployments.scheduling import LanePolicy, SchedulingPolicy
from planning.simulator.cell import CellSettings, CellSimulator
from planning.simulator.workload import Workload, plain_workload
from planning.workload.lengths import IntArray

PROBED = 1_200
"""Requests that a replica's capacity is measured with."""
_NO_END_S = 1e9


@dataclass(frozen=True, slots=True, eq=False)
class Serving:
    """An engine, its step costs, and the lanes in front of it."""

    limits: EngineModelLimits
    cost: CostModel
    policy: SchedulingPolicy


def _serving(name: str, lanes: tuple[LanePolicy, ...], decode_weight: float) -> Serving:
    """With what vLLM's resolved configuration has on a GPU: asynchronous scheduling and prefix caching."""
    file = read_cost_file(Path(__file__).with_name(f"{name}.costs.json"))
    policy = SchedulingPolicy(lanes, decode_weight=decode_weight)
    return Serving(replace(file.limits(), prefix_caching=True), file.cost_model(), policy)


CHAT = _serving(
    "chat", (LanePolicy("short", 3_000, 8.0, 20.0, 600.0), LanePolicy("long", None, 1.0, 60.0, 600.0)), 26.0
)
REASONING = _serving(
    "reasoning", (LanePolicy("short", 6_000, 8.0, 30.0, 3_600.0), LanePolicy("long", None, 1.0, 120.0, 3_600.0)), 21.0
)


def full_rate(serving: Serving, work: Workload) -> float:
    """Requests a second of one replica that is always full, over some hundreds of these requests, one after the other:
    a closed loop of more clients than it has room for. The first and the last fifth do not count."""
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


def full_rate_of(serving: Serving, prompt_tokens: IntArray, output_tokens: IntArray) -> float:
    """The same of requests that share no prefixes."""
    return full_rate(serving, plain_workload(np.zeros(len(prompt_tokens)), prompt_tokens, output_tokens, bounded=False))
