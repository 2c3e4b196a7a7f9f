"""Measured runs of vLLM (LLMServingSim's, on RTX PRO 6000), and the simulated engine with the same requests.

The servers were not warmed up: their first step takes longer (`planning/costs/host.py`).
"""

from dataclasses import replace
from pathlib import Path

from cluster.hardware import Gpu, gpu_named
from deployments.engine_model.cost_model import CostModel
from deployments.engine_model.limits import EngineModelLimits
from planning.costs import recorded_run
from planning.costs.recorded_run import RecordedRun

RUNS = Path(__file__).resolve().parents[4] / "shared" / "data" / "vllm_runs"
LLAMA_RUN, LLAMA_PROFILE = "RTXPRO6000__Llama-3.1-8B", "RTXPRO6000__meta-llama__Llama-3.1-8B__bf16__tp1"
QWEN_RUN, QWEN_PROFILE = "RTXPRO6000__Qwen3-32B__tp2", "RTXPRO6000__Qwen__Qwen3-32B__bf16__tp2"
SEQUENCES, STEP_TOKENS, LONGEST = 128, 2_048, 40_960


def two_cards() -> Gpu:
    """An RTX PRO 6000 whose link is that of the second run's server, as its owners state it: 16 GB/s, 20 us a
    message."""
    return replace(gpu_named("rtx-pro-6000"), link_bytes_per_s=16e9, link_latency_s=20e-6)


def read_run(name: str) -> RecordedRun:
    return recorded_run.read_run(RUNS / f"{name}__requests.jsonl.gz")


_COLD_STEP_S = 0.065
"""How much longer the first answer of that server took: nothing had warmed it up, as raylane does."""


def simulated_figures(run: RecordedRun, cost: CostModel, kv_tokens: int = 500_000) -> dict[str, float]:
    """What the simulated engine does with the same requests."""
    limits = EngineModelLimits(SEQUENCES, STEP_TOKENS, kv_tokens, async_scheduling=True)
    return recorded_run.simulated_figures(run, cost, limits, _COLD_STEP_S)
