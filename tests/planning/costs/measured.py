"""Measured runs of vLLM (LLMServingSim's, on RTX PRO 6000), and the simulated engine with the same requests.

A request's time counts from the client's sending it. Requests that the engine scheduled when it first looked at them
did not queue. The servers were not warmed up: their first step takes longer (`planning/costs/host.py`).
"""

import gzip
import json
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from cluster.hardware import Gpu, gpu_named
from deployments.engine_model.cost_model import CostModel
from deployments.engine_model.limits import EngineModelLimits
from planning.simulator.workload import plain_workload
from planning.workload.arrivals import FloatArray
from planning.workload.lengths import IntArray
from tests.planning.simulator.bare_engine import run_engine

RUNS = Path(__file__).resolve().parents[4] / "shared" / "data" / "vllm_runs"
LLAMA_RUN, LLAMA_PROFILE = "RTXPRO6000__Llama-3.1-8B", "RTXPRO6000__meta-llama__Llama-3.1-8B__bf16__tp1"
QWEN_RUN, QWEN_PROFILE = "RTXPRO6000__Qwen3-32B__tp2", "RTXPRO6000__Qwen__Qwen3-32B__bf16__tp2"
SEQUENCES, STEP_TOKENS, LONGEST = 128, 2_048, 40_960
NO_QUEUE_S = 1e-3


def two_cards() -> Gpu:
    """An RTX PRO 6000 whose link is that of the second run's server, as its owners state it: 16 GB/s, 20 us a
    message."""
    return replace(gpu_named("rtx-pro-6000"), link_bytes_per_s=16e9, link_latency_s=20e-6)


@dataclass(frozen=True, slots=True)
class MeasuredRun:
    """Seconds and tokens by request, in the order in which they were sent. `tpot_s`: NaN for a single token."""

    arrived_s: FloatArray
    prompt: IntArray
    output: IntArray
    ttft_s: FloatArray
    tpot_s: FloatArray
    unqueued: FloatArray


def read_run(name: str) -> MeasuredRun:
    with gzip.open(RUNS / f"{name}__requests.jsonl.gz", "rt") as file:
        rows = sorted((json.loads(line) for line in file), key=lambda row: row["arrival_time"])
    keys = ("arrival_time", "queued_ts", "scheduled_ts", "first_token_ts", "last_token_ts")
    arrived, queued, scheduled, first, last = (np.array([row[key] for row in rows]) for key in keys)
    prompt, output = (np.array([row[key] for row in rows], dtype=np.int64) for key in ("input_toks", "output_toks"))
    arrived += (queued - arrived).min()  # to the engine's clock: the fastest took no time to the engine's queue
    return MeasuredRun(
        arrived - arrived[0],
        prompt,
        output,
        first - arrived,
        np.where(output > 1, (last - first) / np.maximum(output - 1, 1), np.nan),
        scheduled - queued < NO_QUEUE_S,
    )


_COLD_STEP_S = 0.065
"""How much longer the first answer of that server took: nothing had warmed it up, as raylane does."""


def simulated_figures(run: MeasuredRun, cost: CostModel, kv_tokens: int = 500_000) -> dict[str, float]:
    """What the simulated engine does with the same requests."""
    ready_s = np.maximum(run.arrived_s, _COLD_STEP_S)
    limits = EngineModelLimits(SEQUENCES, STEP_TOKENS, kv_tokens, async_scheduling=True)
    out = run_engine(limits, cost, plain_workload(ready_s, run.prompt, run.output))
    return _figures(out.first_s - run.arrived_s, out.tpot_s, run.unqueued)


def measured_figures(run: MeasuredRun) -> dict[str, float]:
    return _figures(run.ttft_s, run.tpot_s, run.unqueued)


def _figures(ttft_s: FloatArray, tpot_s: FloatArray, unqueued: FloatArray) -> dict[str, float]:
    found = {}
    for name, chosen in (("", np.ones(len(ttft_s), dtype=bool)), ("unqueued ", unqueued)):
        for kind, values in (("TTFT", ttft_s[chosen]), ("TPOT", tpot_s[chosen])):
            found[f"{name}{kind} mean"] = float(np.nanmean(values))
            found |= {f"{name}{kind} p{level}": float(np.nanpercentile(values, level)) for level in (50, 90)}
    return found
