"""The rooflines that are files (of the simulated H100s, of `benchmarks.policies`, of the tuned spec) are near what
today's rooflines say of the same engines: a change of the constants that matters is to reach them, too."""

import math
from pathlib import Path
from typing import Any

import pytest

from benchmarks.policies.engines import CHAT, REASONING
from deployments.engine_model.cost_file import CostFile, read_cost_file
from deployments.engine_model.cost_model import Chunk, CostModel
from planning.costs.roofline import roofline
from tests.planning.fit.configs import LLAMA_8B, LLAMA_70B, plan_on

ROOT = Path(__file__).resolve().parents[3]
DRIFT = 1.1
QUANTIZED = {"quantization": "fp8", "kv_cache_dtype": "fp8"}
FILES = [
    ("infra/specs/simulated-h100.costs.json", LLAMA_8B, "h100", {"max_num_batched_tokens": 8_192}),
    ("infra/specs/simulated-l40s.costs.json", LLAMA_8B, "l40s", {"max_num_batched_tokens": 4_096}),
    ("benchmarks/policies/chat.costs.json", LLAMA_8B, "l40s", {}),
    ("benchmarks/policies/reasoning.costs.json", LLAMA_70B, "rtx-pro-6000", QUANTIZED),
    ("benchmarks/tune.costs.json", LLAMA_70B, "a100-80g", {"tensor_parallel_size": 4, "max_num_batched_tokens": 4_096}),
]


def steps(cost: CostModel, file: CostFile) -> list[float]:
    """Of decodes, few and as many as there may be; of a prompt alone and beside decodes."""
    batch, prompt = file.engine.max_num_seqs, min(2_048, file.engine.max_num_batched_tokens - file.engine.max_num_seqs)
    decodes = [cost.step_s([], count, 1_000.0 * count, 0) for count in (1, batch // 2, batch)]
    return [*decodes, *(cost.step_s([Chunk(prompt, 0)], count, 1_000.0 * count, 1) for count in (0, batch))]


@pytest.mark.parametrize(("path", "config", "gpu", "settings"), FILES)
def test_a_shipped_roofline_is_todays(path: str, config: dict[str, Any], gpu: str, settings: dict[str, Any]) -> None:
    file = read_cost_file(ROOT / path)
    today = roofline(plan_on(gpu, config, **settings)).model
    for written_s, now_s in zip(steps(file.cost_model(), file), steps(today, file), strict=True):
        assert abs(math.log(written_s / now_s)) < math.log(DRIFT)


@pytest.mark.parametrize("serving", [CHAT, REASONING], ids=["chat", "reasoning"])
def test_the_engines_of_scenarios_are_those_of_gpus(serving: Any) -> None:
    limits = serving.limits
    assert (limits.prefix_caching, limits.async_scheduling, limits.chunked_prefill) == (True, True, True)
    assert 12 <= limits.sequences <= 16
    full_s = serving.cost.run_s(1, limits.sequences, 1_500 * limits.sequences)
    prompt_s = serving.cost.step_s([Chunk(2_048, 0)], 0, 0.0, 1)
    weight = full_s / limits.sequences / (prompt_s / 2_048)
    assert serving.policy.decode_weight == pytest.approx(weight, rel=0.15)
