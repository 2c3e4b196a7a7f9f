"""The roofline: of the right order on every GPU, consistent between sizes, and clear about what it approximates."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.hardware import GPUS, gpu_named
from cluster.spec.models import EngineSettings
from deployments.engine_model.cost_model import Chunk
from planning.costs.profile import Costs
from planning.costs.roofline import roofline
from planning.fit.architecture import read_architecture
from planning.fit.memory import plan_of
from planning.fit.verdict import fit
from tests.planning.fit import configs
from tests.planning.fit.configs import LLAMA_8B, LLAMA_70B, QWEN3_30B_A3B, QWEN3_32B

SETTINGS = EngineSettings(max_model_len=8_192, max_num_seqs=128)


def costs_of(config: dict[str, Any], gpu: str = "h100", tensor: int = 1, **more: Any) -> Costs:
    settings = SETTINGS.model_copy(update={"tensor_parallel_size": tensor, **more})
    return roofline(plan_of(read_architecture(config), settings, gpu_named(gpu)))


def test_decode_is_bound_by_memory_and_prefill_by_compute() -> None:
    cost = costs_of(LLAMA_8B).model
    assert cost.base_s(64) < 1.3 * cost.base_s(1), "a batch costs hardly more than one"
    assert cost.base_s(1) == pytest.approx(0.007, rel=0.3), "16 GB at 3.35 TB/s"
    assert cost.dense(8_192) > 8 * cost.dense(256)


@pytest.mark.whole
@given(st.sampled_from(sorted(GPUS)), st.integers(1, 4_096), st.integers(1, 4_096))
def test_more_tokens_never_take_less(gpu: str, tokens: int, more: int) -> None:
    for config in (LLAMA_8B, QWEN3_30B_A3B):
        cost = costs_of(config, gpu).model
        assert cost.dense(tokens) <= cost.dense(tokens + more) * (1 + 1e-9)


def test_a_mixture_reads_the_experts_that_its_tokens_reach() -> None:
    """Of 30 billion weights a token uses 3.3: one decode reads those, many decodes read nearly all."""
    gpu = gpu_named("h100")
    cost = costs_of(QWEN3_30B_A3B).model
    bytes_per_s = 0.9 * gpu.memory_bytes_per_s
    launches_s = 48 * 15 * 4e-6
    assert 3.3e9 * 2 / bytes_per_s < cost.dense(1) < 3.3e9 * 2 / bytes_per_s + launches_s
    assert cost.dense(1) < 0.5 * cost.dense(64)
    assert cost.dense(128) == pytest.approx(30.5e9 * 2 / bytes_per_s, rel=0.35)
    assert cost.dense(64) < costs_of(QWEN3_32B).model.dense(64)


def test_whole_experts_on_gpus_wait_for_the_fullest() -> None:
    slices = costs_of(QWEN3_30B_A3B, tensor=4).model
    whole = costs_of(QWEN3_30B_A3B, tensor=4, enable_expert_parallel=True).model
    assert slices.dense(512) <= whole.dense(512) < 1.5 * slices.dense(512)


def test_copies_of_the_attention_share_the_experts() -> None:
    one = costs_of(QWEN3_30B_A3B).model
    copies = costs_of(QWEN3_30B_A3B, data_parallel_size=8, enable_expert_parallel=True).model
    assert copies.base_s(8 * 64) < one.base_s(64), "each GPU reads an eighth of the experts"
    assert copies.base_s(8 * 64) < 0.5 * one.base_s(8 * 64)
    prompt = [Chunk(2_048, 0)]
    assert copies.step_s(prompt, 0, 0, 1) == copies.step_s(8 * prompt, 0, 0, 8) < 3 * one.step_s(prompt, 0, 0, 1)


def test_eight_bit_weights_are_read_in_half_the_time() -> None:
    quantized = {**LLAMA_70B, "quantization_config": {"quant_method": "fp8", "activation_scheme": "dynamic"}}
    full, half = (costs_of(config, "h100", 4).model for config in (LLAMA_70B, quantized))
    assert 0.45 * full.dense(16) < half.dense(16) < 0.7 * full.dense(16)


def test_every_public_architecture_has_costs_on_one_gpu_and_on_eight() -> None:
    """A decode of one token reads no more than all weights, in the time of its launches."""
    found = {name: config for name, config in vars(configs).items() if name[0] != "_" and isinstance(config, dict)}
    assert len(found) > 10
    for config in found.values():
        for tensor in (1, 8):
            architecture = read_architecture(config)
            settings = SETTINGS.model_copy(update={"tensor_parallel_size": tensor})
            cost = costs_of(config, tensor=tensor).model
            read_s = fit(architecture, settings, gpu_named("h100")).weights_bytes / gpu_named("h100").memory_bytes_per_s
            launches_s = 200e-6 * len(architecture.layers)
            assert cost.step_s((), 1, 1_000, 0) < 1.6 * read_s + launches_s
            assert cost.step_s((), 256, 256_000, 0) > 0.5 * read_s
