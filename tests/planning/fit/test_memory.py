"""The fit against published measurements, what is refused and why, and what must always hold."""

from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cluster.hardware import Gpu, gpu_named
from cluster.spec.models import EngineSettings
from planning.fit.architecture import read_architecture
from planning.fit.memory import batch_defaults
from planning.fit.quantization import NotModelled
from planning.fit.verdict import Fit, fit
from tests.planning.fit import configs

GIB = 1 << 30
H100 = gpu_named("h100")


def fit_of(config: dict[str, Any], gpu: Gpu = H100, **settings: Any) -> Fit:
    """With the batch that vLLM's server takes by itself, and the model's whole context."""
    model = read_architecture(config)
    step_tokens, sequences = batch_defaults(gpu)
    given = {"max_model_len": model.longest, "max_num_seqs": sequences, "max_num_batched_tokens": step_tokens}
    return fit(model, EngineSettings(**given | settings), gpu)


@pytest.mark.parametrize(
    ("config", "weights_gib", "activation_gib", "pool_gib"),
    [
        (configs.GPT_OSS_20B, 13.47, 7.38, 50.28),
        (configs.LLAMA_8B, 14.99, 4.76, 51.38),
        (configs.QWEN3_0_6B, 1.12, 5.56, 64.45),
        (configs.QWEN3_32B, 61.03, 5.64, 4.45),
    ],
)
def test_measured_memory_of_an_h100(
    config: dict[str, Any], weights_gib: float, activation_gib: float, pool_gib: float
) -> None:
    """vLLM's log on one H100 with its server's defaults: llm-d-incubation/llm-d-planner e50305a (Apache-2.0),
    docs/empirical-vllm-memory-results.md."""
    found = fit_of(config, max_model_len=16_000, extra={"block_size": 128})
    assert found.starts
    assert found.weights_bytes / GIB == pytest.approx(weights_gib, rel=0.01)
    assert found.activation_bytes / GIB == pytest.approx(activation_gib, rel=0.03)
    assert abs(found.pool_bytes / GIB - pool_gib) < max(1.0, 0.05 * pool_gib)


def test_the_largest_images_that_a_step_encodes_count() -> None:
    """32 of Gemma's are more than its decoder; two of Mistral's leave their 3,025 tokens each beside it."""
    text = {"max_model_len": 16_000, "max_num_seqs": 64, "extra": {"limit_mm_per_prompt": {"image": 0}}}
    images = text | {"extra": {}}
    assert (
        fit_of(configs.GEMMA3_27B, **images).activation_bytes > 2 * fit_of(configs.GEMMA3_27B, **text).activation_bytes
    )
    mistral = [fit_of(configs.MISTRAL_SMALL_24B, **given).activation_bytes for given in (images, text)]
    assert mistral[0] - mistral[1] == 2 * 3_025 * 5_120 * 2


def reason_of(found: Fit) -> str:
    assert not found.starts
    return found.refusals[0]


@pytest.mark.parametrize(
    ("config", "gpu", "settings", "reason"),
    [
        (configs.DEEPSEEK_R1, "h100", {"max_model_len": 16_000}, "while loading"),
        (configs.LLAMA_8B, "h100", {"tensor_parallel_size": 3}, "attention heads"),
        (configs.LLAMA_8B, "h100", {"max_model_len": 200_000}, "max_model_len = 200000"),
        (configs.LLAMA_8B, "l4", {"max_model_len": 131_072}, "max_model_len = 131072"),
        (configs.QWEN3_32B, "h100", {"gpu_memory_utilization": 0.8}, "no memory is left"),
        (configs.QWEN3_32B, "h100", {"max_num_seqs": 4_096, "max_num_batched_tokens": 4_096}, "while profiling"),
        (configs.LLAMA_8B, "h100", {"gpu_memory_utilization": 1.0}, "gpu_memory_utilization = 1.0"),
        (configs.LLAMA_8B, "h100", {"max_num_seqs": 512, "max_num_batched_tokens": 256}, "max_num_batched_tokens"),
        (
            configs.LLAMA_8B,
            "h100",
            {"chunked_prefill": False, "max_num_batched_tokens": 2_048},
            "max_num_batched_tokens",
        ),
        (configs.LLAMA_8B, "h100", {"quantization": "awq"}, "quantization ="),
        (configs.GPT_OSS_20B, "h100", {"quantization": "fp8"}, "quantization ="),
        (configs.GPT_OSS_20B, "t4", {"tensor_parallel_size": 2}, "capability 7.5"),
        (configs.QWEN3_0_6B, "t4", {"dtype": "bfloat16"}, "no BF16"),
        ({**configs.QWEN3_0_6B, "num_hidden_layers": 4}, "h100", {"pipeline_parallel_size": 8}, "layers"),
        (configs.QWEN3_0_6B, "h100", {"tensor_parallel_size": 16, "max_model_len": 1_000}, None),
    ],
)
def test_what_vllm_would_refuse_is_refused_with_the_reason(
    config: dict[str, Any], gpu: str, settings: dict[str, Any], reason: str | None
) -> None:
    found = fit_of(config, gpu_named(gpu), **settings)
    if reason is None:
        assert found.starts
    else:
        assert reason in reason_of(found)
        assert "allowed" in reason_of(found)


def test_fp8_blocks_do_not_divide_by_any_number_of_gpus() -> None:
    config = {**configs.QWEN3_30B_A3B, "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]}}
    assert fit_of(config, tensor_parallel_size=2).starts
    assert "blocks of 128" in reason_of(fit_of(config, tensor_parallel_size=4))


def test_the_length_that_a_refusal_allows_is_the_longest_that_starts() -> None:
    refused = fit_of(configs.LLAMA_8B, gpu_named("l4"), max_model_len=131_072)
    longest = int(refused.refusals[0].rpartition(" ")[2])
    assert fit_of(configs.LLAMA_8B, gpu_named("l4"), max_model_len=longest).starts
    assert not fit_of(configs.LLAMA_8B, gpu_named("l4"), max_model_len=longest + 16).starts


def test_a_window_bounds_what_a_sequence_takes() -> None:
    found = fit_of(configs.GPT_OSS_20B, max_model_len=131_072)
    full = fit_of({**configs.GPT_OSS_20B, "layer_types": ["full_attention"] * 24}, max_model_len=131_072)
    assert found.sequences(131_072) > 1.7 * full.sequences(131_072), (
        "half of the layers keep 128 tokens and what is in flight"
    )
    assert fit_of(configs.MISTRAL_7B_V01, max_model_len=32_768).sequences(32_768) > fit_of(
        configs.LLAMA_8B, max_model_len=32_768
    ).sequences(32_768)


def test_gpus_share_weights_and_kv_heads() -> None:
    one, two, sixteen = (
        fit_of(configs.LLAMA_8B, max_model_len=8_192, tensor_parallel_size=gpus) for gpus in (1, 2, 16)
    )
    assert two.weights_bytes == pytest.approx(one.weights_bytes / 2, rel=0.01)
    assert two.kv_tokens > 2 * one.kv_tokens
    assert sixteen.kv_tokens < 16 * two.kv_tokens / 2, "eight KV heads are repeated on sixteen GPUs"
    staged = fit_of(configs.LLAMA_8B, max_model_len=8_192, pipeline_parallel_size=2)
    assert one.weights_bytes / 2 < staged.weights_bytes < 0.6 * one.weights_bytes


MODELS = st.sampled_from(
    [
        configs.LLAMA_8B,
        configs.QWEN3_0_6B,
        configs.QWEN3_30B_A3B,
        configs.GPT_OSS_20B,
        configs.DEEPSEEK_R1,
        configs.MISTRAL_7B_V01,
        configs.MISTRAL_SMALL_24B,
        {**configs.LLAMA_70B, "quantization_config": {"quant_method": "awq", "bits": 4, "group_size": 128}},
    ]
)
SETTINGS = st.builds(
    EngineSettings,
    max_model_len=st.integers(16, 32_768),
    max_num_seqs=st.integers(1, 512),
    max_num_batched_tokens=st.integers(512, 16_384),
    gpu_memory_utilization=st.floats(0.3, 0.98),
    extra=st.sampled_from([{"block_size": size} for size in (16, 64, 128)]),
    tensor_parallel_size=st.sampled_from([1, 2, 4, 8]),
    pipeline_parallel_size=st.integers(1, 4),
    enforce_eager=st.booleans(),
    kv_cache_dtype=st.sampled_from(["auto", "fp8"]),
)


@pytest.mark.whole
@given(MODELS, SETTINGS, st.integers(8, 200), st.integers(0, 200))
def test_more_memory_never_fits_less(config: dict[str, Any], settings: EngineSettings, gib: int, more: int) -> None:
    model = read_architecture(config)
    small = fit(model, settings, replace(H100, usable_bytes=gib * GIB))
    large = fit(model, settings, replace(H100, usable_bytes=(gib + more) * GIB))
    assert large.blocks >= small.blocks
    assert large.starts or not small.starts


@pytest.mark.whole
@given(MODELS, SETTINGS, st.integers(16, 32_768))
def test_a_longer_context_never_fits_more(config: dict[str, Any], settings: EngineSettings, length: int) -> None:
    model, shorter = read_architecture(config), min(length, settings.max_model_len or 16)
    longer = max(length, settings.max_model_len or 16)
    short, long = (fit(model, settings.model_copy(update={"max_model_len": one}), H100) for one in (shorter, longer))
    assert short.starts or not long.starts
    assert long.sequences(longer) <= short.sequences(shorter)
    assert long.blocks <= short.blocks


NUMBERS = st.one_of(st.integers(-9, 1 << 45), st.floats())
JSON = st.one_of(st.none(), st.booleans(), NUMBERS, st.text(max_size=3), st.lists(st.integers(), max_size=2))
MAPPINGS = st.dictionaries(st.sampled_from(["rope_type", "factor", "quant_method", "bits"]), JSON)


@settings(max_examples=40)
@given(MODELS, st.data())
def test_any_config_is_either_read_or_refused(config: dict[str, Any], data: st.DataObject) -> None:
    changed = {**config, **{data.draw(st.sampled_from(sorted(config))): data.draw(JSON | MAPPINGS) for _ in range(2)}}
    with suppress(NotModelled):
        fit(read_architecture(changed), EngineSettings(max_model_len=1_024), H100)


@pytest.mark.whole
@given(MODELS, SETTINGS, st.sampled_from([1, 2, 4]))
def test_more_gpus_never_need_more_memory_each(config: dict[str, Any], settings: EngineSettings, gpus: int) -> None:
    """But for what the exchange between them takes, which one GPU does not have."""
    model = read_architecture(config)
    few, many = (
        fit(model, settings.model_copy(update={"tensor_parallel_size": count, "pipeline_parallel_size": 1}), H100)
        for count in (gpus, 2 * gpus)
    )
    assert many.weights_bytes <= few.weights_bytes
    assert many.activation_bytes <= few.activation_bytes
    assert many.pool_bytes + many.non_torch_bytes >= few.pool_bytes + few.non_torch_bytes


@pytest.mark.parametrize("whole", [False, True])
def test_data_parallel_ranks_repeat_the_model_and_share_its_experts(whole: bool) -> None:
    """Of 128 experts a GPU of four has 32, or a quarter of each; the rest and the KV cache are as on one."""
    one = fit_of(configs.QWEN3_30B_A3B, max_model_len=8_192)
    four = fit_of(configs.QWEN3_30B_A3B, max_model_len=8_192, data_parallel_size=4, enable_expert_parallel=whole)
    experts = 48 * 128 * 3 * 2_048 * 768 * 2
    assert one.weights_bytes - four.weights_bytes == pytest.approx(0.75 * experts, rel=0.01)
    assert four.blocks > one.blocks
    assert four.sequence_blocks(8_192) == one.sequence_blocks(8_192)
    dense = fit_of(configs.LLAMA_8B, max_model_len=8_192, data_parallel_size=4)
    assert dense.weights_bytes == fit_of(configs.LLAMA_8B, max_model_len=8_192).weights_bytes


def test_experts_are_cut_by_all_ranks_or_not_at_all() -> None:
    uneven = {**configs.QWEN3_30B_A3B, "moe_intermediate_size": 774}
    assert "width 774" in reason_of(fit_of(uneven, max_model_len=8_192, data_parallel_size=4))
    assert fit_of(uneven, max_model_len=8_192, data_parallel_size=4, enable_expert_parallel=True).starts
    assert "no experts" in reason_of(fit_of(configs.LLAMA_8B, max_model_len=8_192, enable_expert_parallel=True))
