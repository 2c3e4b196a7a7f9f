"""What a `config.json` says about a model's weights and its KV cache, and how quantized weights are counted."""

from typing import Any

import pytest

from cluster.hardware import gpu_named
from cluster.spec.models import EngineSettings
from planning.fit.architecture import read_architecture
from planning.fit.quantization import NotModelled, read_quantization
from planning.fit.verdict import fit
from tests.planning.fit import configs

H200 = gpu_named("h200")


def billions(config: dict[str, Any]) -> float:
    """Billions of parameters, by the bytes of 16-bit weights."""
    model = read_architecture(config)
    return (fit(model, EngineSettings(max_model_len=1_024), H200).weights_bytes / 2 - model.rope) / 1e9


@pytest.mark.parametrize(
    ("config", "parameters"),
    [
        (configs.LLAMA_8B, 8.030),
        (configs.LLAMA_70B, 70.554),
        (configs.QWEN3_0_6B, 0.596),
        (configs.QWEN3_32B, 32.76),
        (configs.QWEN3_30B_A3B, 30.53),
        (configs.MIXTRAL_8X7B, 46.70),
        (configs.MISTRAL_SMALL_24B, 24.01),
        (configs.QWEN2_5_7B, 7.616),
        (configs.GEMMA3_27B, 27.43),
        (configs.LLAMA4_MAVERICK, 400.71),
        (configs.DEEPSEEK_V2_LITE, 15.71 + 0.057),
    ],
)
def test_parameters_of_public_models(config: dict[str, Any], parameters: float) -> None:
    assert billions(config) == pytest.approx(parameters, rel=0.003)


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (configs.LLAMA_8B, 131_072),
        (configs.MISTRAL_SMALL_24B, 163_840),
        (configs.GPT_OSS_20B, 49_152),
        (configs.DEEPSEEK_R1, 61 * 576 * 2),
    ],
)
def test_kv_bytes_of_a_token(config: dict[str, Any], expected: int) -> None:
    model = read_architecture(config)
    assert fit(model, EngineSettings(max_model_len=1_024), H200).kv_bytes_per_token == expected
    halved = fit(model, EngineSettings(max_model_len=1_024, kv_cache_dtype="fp8"), H200)
    assert halved.kv_bytes_per_token == expected / 2


def compressed(**weights: object) -> dict[str, Any]:
    return {"quant_method": "compressed-tensors", "config_groups": {"group_0": {"weights": weights}}}


QUANTIZED: list[tuple[dict[str, Any], float]] = [
    ({"quant_method": "fp8"}, 8),
    ({"quant_method": "fp8", "weight_block_size": [128, 128]}, 8 + 32 / 128**2),
    ({"quant_method": "fbgemm_fp8"}, 8),
    ({"quant_method": "awq", "bits": 4, "group_size": 128}, 4 + 20 / 128),
    ({"quant_method": "gptq", "bits": 4, "group_size": 128, "desc_act": False}, 4 + 20 / 128),
    (compressed(num_bits=8, type="float", strategy="channel"), 8),
    (compressed(num_bits=4, type="int", strategy="group", group_size=128), 4 + 16 / 128),
    (compressed(num_bits=4, type="float", group_size=16), 4.5),
    ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, 4.5),
    ({"quant_method": "modelopt", "quantization": {"quant_algo": "FP8"}}, 8),
]


@pytest.mark.parametrize(("section", "bits"), QUANTIZED)
def test_quantized_weights_take_the_bits_and_scales_of_their_method(section: dict[str, Any], bits: float) -> None:
    quantization = read_quantization(section)
    assert quantization is not None
    assert quantization.bytes_of(4_096, 14_336) * 8 / (4_096 * 14_336) == pytest.approx(bits, rel=0.002)
    assert quantization.covers("model.layers.0.mlp.gate_proj")
    assert not quantization.covers("lm_head")


@pytest.mark.parametrize(
    "entry", ["mlp.gate_proj", "re:.*gate_proj$", "model.layers.*.mlp.gate_proj", "model.layers.0.mlp"]
)
def test_modules_left_out_stay_as_they_are(entry: str) -> None:
    quantization = read_quantization({"quant_method": "fp8", "ignored_layers": [entry]})
    assert quantization is not None
    assert not quantization.covers("model.layers.0.mlp.gate_proj")
    assert quantization.covers("model.layers.0.self_attn.q_proj")


def test_windows_follow_the_config() -> None:
    def windows(config: dict[str, Any]) -> list[int | None]:
        return [layer.window for layer in read_architecture(config).layers]

    assert windows(configs.GPT_OSS_20B)[:3] == [128, None, 128]
    assert set(windows(configs.MISTRAL_7B_V01)) == {4_096}
    gemma = {**configs.LLAMA_8B, "model_type": "gemma3_text", "sliding_window": 1_024, "num_hidden_layers": 12}
    assert windows(gemma) == ([1_024] * 5 + [None]) * 2
    unused = {**configs.QWEN3_0_6B, "sliding_window": 4_096, "use_sliding_window": False}
    assert set(windows(unused)) == {None}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"hidden_size": None}, "hidden_size: missing"),
        ({"hidden_size": "wide"}, "hidden_size = 'wide': allowed: a whole number"),
        ({"num_hidden_layers": 0}, "num_hidden_layers = 0: allowed: 1 to 1000"),
        ({"sliding_window": 9, "layer_types": ["full_attention"]}, "layer_types has 1 entries"),
        ({"layer_types": ["linear_attention"] * 32}, "linear_attention"),
        ({"is_encoder_decoder": True}, "not a plain decoder"),
        ({"quantization_config": {"quant_method": "secret"}}, "quant_method = 'secret': allowed: awq"),
        ({"quantization_config": {"quant_method": "awq"}}, "'awq' cannot be read"),
        ({"quantization_config": {"quant_method": "modelopt", "quant_algo": "W2"}}, "quant_algo = 'W2'"),
    ],
)
def test_what_is_not_modelled_is_named(change: dict[str, Any], said: str) -> None:
    with pytest.raises(NotModelled, match=said):
        read_architecture({**configs.LLAMA_8B, **change})
