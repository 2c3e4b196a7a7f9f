"""Public models' architectures, as their `config.json` states them, cut down to what memory depends on."""

from collections.abc import Mapping
from typing import Any

from cluster.hardware import gpu_named
from cluster.spec.models import EngineSettings
from planning.fit.architecture import read_architecture
from planning.fit.memory import Plan, plan_of


def plan_on(gpu: str, config: Mapping[str, Any], **settings: Any) -> Plan:
    """What a model takes on a GPU."""
    return plan_of(read_architecture(config), EngineSettings(**{"max_model_len": 8_192} | settings), gpu_named(gpu))


_DECODER = (
    "model_type",
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "intermediate_size",
    "vocab_size",
    "max_position_embeddings",
)


def _decoder(*facts: str | int, **more: Any) -> dict[str, Any]:
    """`facts`: those of `_DECODER`, as many as the config states."""
    return dict(zip(_DECODER, facts, strict=False)) | more


_YARN = {"rope_type": "yarn", "factor": 32.0, "original_max_position_embeddings": 4_096}
_LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "original_max_position_embeddings": 8_192}
LLAMA_8B = _decoder("llama", 4_096, 32, 32, 8, 14_336, 128_256, 131_072, rope_scaling=_LLAMA3, torch_dtype="bfloat16")
LLAMA_8B |= {"tie_word_embeddings": False}
LLAMA_70B = LLAMA_8B | _decoder("llama", 8_192, 80, 64, 8, 28_672)
QWEN3_0_6B = _decoder("qwen3", 1_024, 28, 16, 8, 3_072, 151_936, 40_960, sliding_window=None, torch_dtype="bfloat16")
QWEN3_0_6B |= {"head_dim": 128, "tie_word_embeddings": True}
QWEN3_32B = QWEN3_0_6B | _decoder("qwen3", 5_120, 64, 64, 8, 25_600, tie_word_embeddings=False)
_EXPERTS = {"num_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 768}
_EXPERTS |= {"decoder_sparse_step": 1, "mlp_only_layers": []}
QWEN3_30B_A3B = QWEN3_0_6B | _EXPERTS | _decoder("qwen3_moe", 2_048, 48, 32, 4, 6_144, tie_word_embeddings=False)
_NOT_CONVERTED = ["model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"]
GPT_OSS_20B = _decoder("gpt_oss", 2_880, 24, 64, 8, 2_880, 201_088, 131_072, rope_scaling=_YARN, sliding_window=128)
GPT_OSS_20B |= {
    "head_dim": 64,
    "num_local_experts": 32,
    "num_experts_per_tok": 4,
    "layer_types": ["sliding_attention", "full_attention"] * 12,
    "attention_bias": True,
    "tie_word_embeddings": False,
    "quantization_config": {"quant_method": "mxfp4", "modules_to_not_convert": _NOT_CONVERTED},
}
_LATENT = {"kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128, "moe_layer_freq": 1}
DEEPSEEK_R1 = _LATENT | _decoder("deepseek_v3", 7_168, 61, 128, 128, 18_432, 129_280, 163_840, q_lora_rank=1_536)
DEEPSEEK_R1 |= {"moe_intermediate_size": 2_048, "n_routed_experts": 256, "n_shared_experts": 1}
DEEPSEEK_R1 |= {"num_experts_per_tok": 8, "first_k_dense_replace": 3, "tie_word_embeddings": False}
DEEPSEEK_R1 |= {"rope_scaling": {"type": "yarn", "factor": 40, "original_max_position_embeddings": 4_096}}
DEEPSEEK_R1 |= {"quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]}}
DEEPSEEK_V2_LITE = _LATENT | _decoder("deepseek_v2", 2_048, 27, 16, 16, 10_944, 102_400, 163_840, q_lora_rank=None)
DEEPSEEK_V2_LITE |= {"moe_intermediate_size": 1_408, "n_routed_experts": 64, "n_shared_experts": 2}
DEEPSEEK_V2_LITE |= {"num_experts_per_tok": 6, "first_k_dense_replace": 1}
_PIXTRAL = _decoder("pixtral", 1_024, 24, 16, patch_size=14, image_size=1_540) | {"intermediate_size": 4_096}
_SMALL = _decoder("mistral", 5_120, 40, 32, 8, 32_768, 131_072, 131_072, head_dim=128, sliding_window=None)
MISTRAL_SMALL_24B: dict[str, Any] = {"model_type": "mistral3", "spatial_merge_size": 2, "torch_dtype": "bfloat16"}
MISTRAL_SMALL_24B |= {"text_config": _SMALL, "vision_config": _PIXTRAL}
MIXTRAL_8X7B = _decoder("mixtral", 4_096, 32, 32, 8, 14_336, 32_000, 32_768, num_local_experts=8)
MIXTRAL_8X7B |= {"num_experts_per_tok": 2, "sliding_window": None}
MISTRAL_7B_V01 = _decoder("mistral", 4_096, 32, 32, 8, 14_336, 32_000, 32_768, sliding_window=4_096)
QWEN2_5_7B = _decoder("qwen2", 3_584, 28, 28, 4, 18_944, 152_064, 32_768, sliding_window=131_072)
QWEN2_5_7B |= {"use_sliding_window": False, "tie_word_embeddings": False}
_GEMMA = _decoder("gemma3_text", 5_376, 62, 32, 16, 21_504, head_dim=128, sliding_window=1_024)
_SIGLIP = {"model_type": "siglip_vision_model", "hidden_size": 1_152, "intermediate_size": 4_304}
_SIGLIP |= {"num_hidden_layers": 27, "patch_size": 14, "image_size": 896}
GEMMA3_27B: dict[str, Any] = {"model_type": "gemma3", "text_config": _GEMMA, "vision_config": _SIGLIP}
GEMMA3_27B |= {"mm_tokens_per_image": 256}
LLAMA4_MAVERICK = _decoder("llama4_text", 5_120, 48, 40, 8, 8_192, 202_048, 1_048_576, head_dim=128)
LLAMA4_MAVERICK |= {"intermediate_size_mlp": 16_384, "num_local_experts": 128, "num_experts_per_tok": 1}
LLAMA4_MAVERICK |= {"interleave_moe_layer_step": 2}
