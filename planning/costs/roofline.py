"""The cost of steps from a GPU's data sheet and a model's shape, where nothing was measured. Good for orders of
magnitude, and marked as unmeasured.

    dense(t)   = max(weights / bandwidth, t * 2 * parameters / FLOP/s)      a step reads all weights once, and computes
               with them for each token
    kv read    = bytes of KV a token / bandwidth                            a decode reads all KV before it
    context    = 4 * heads * head size * blocks / FLOP/s                    two products of each query with each key and
               value

Each divided by the number of GPUs that share the model, and by what kernels reach of the data sheet's figures
(`MEMORY_SHARE`, `COMPUTE_SHARE`: the 0.8 that aiconfigurator's systems table uses for bandwidth, and 0.6, between what
its measured GEMM tables show at small and at large batches).
"""

import json
from dataclasses import dataclass
from pathlib import Path

from cluster.hardware import Gpu
from deployments.engine_model.cost_model import CostModel, Curve, line, plain_attention

MEMORY_SHARE = 0.8
COMPUTE_SHARE = 0.6
STEP_OVERHEAD_S = 0.001
"""Scheduling, sampling and launching of a step, which no data sheet tells."""
RESERVED_BYTES = 4 << 30
"""Of a GPU's memory, for activations, graphs and communication."""


@dataclass(frozen=True, slots=True)
class ModelShape:
    """A dense decoder: what its `config.json` says, and the bytes of a weight and of a KV element."""

    parameters: float
    blocks: int
    heads: int
    kv_heads: int
    head_size: int
    weight_bytes: float = 2.0
    kv_bytes: float = 2.0

    @property
    def kv_bytes_per_token(self) -> float:
        """Keys and values of all blocks."""
        return 2 * self.blocks * self.kv_heads * self.head_size * self.kv_bytes


def read_shape(folder: Path, weight_bytes: float = 2.0, kv_bytes: float = 2.0) -> ModelShape:
    """The shape of the model in a folder, by its `config.json`. Raises ValueError for one that is no dense Llama-like
    decoder."""
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        hidden, blocks, heads = (
            int(config[name]) for name in ("hidden_size", "num_hidden_layers", "num_attention_heads")
        )
        inner, words = int(config["intermediate_size"]), int(config["vocab_size"])
    except FileNotFoundError as error:
        raise ValueError(
            f"{folder}/config.json is not on this machine; allowed: a source that is (its figures are read from there)"
        ) from error
    except (OSError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{folder}/config.json is not that of a dense decoder: {error!r}") from error
    if config.get("num_experts") or config.get("num_local_experts") or config.get("n_routed_experts"):
        raise ValueError(
            f"{folder}: a mixture of experts reads only some of its weights a step; measure it instead (`raylane "
            "calibrate`)"
        )
    kv_heads = int(config.get("num_key_value_heads") or heads)
    head_size = int(config.get("head_dim") or hidden // heads)
    attention = hidden * head_size * (2 * heads + 2 * kv_heads)
    parameters = blocks * (attention + 3 * hidden * inner) + words * hidden * (
        1 if config.get("tie_word_embeddings") else 2
    )
    return ModelShape(float(parameters), blocks, heads, kv_heads, head_size, weight_bytes, kv_bytes)


def roofline(shape: ModelShape, gpu: Gpu, gpus: int = 1) -> CostModel:
    """The cost model of that model on so many GPUs that share it."""
    bandwidth = gpu.memory_bytes_per_s * MEMORY_SHARE * gpus
    fast = gpu.fp8_flops if shape.weight_bytes <= 1 and gpu.fp8_flops else gpu.bf16_flops
    compute = fast * COMPUTE_SHARE * gpus
    read_s, token_s = shape.parameters * shape.weight_bytes / bandwidth, 2 * shape.parameters / compute
    knee = max(1.0, read_s / token_s)
    dense = Curve(
        (0.0, knee, 2 * knee), tuple(STEP_OVERHEAD_S + seconds for seconds in (read_s, read_s, 2 * knee * token_s))
    )
    context_s = 4 * shape.heads * shape.head_size * shape.blocks / (gpu.bf16_flops * COMPUTE_SHARE * gpus)
    return CostModel(dense, line(0.0, 0.0), plain_attention(shape.kv_bytes_per_token / bandwidth, context_s))


def kv_tokens(shape: ModelShape, gpu: Gpu, gpus: int = 1, utilization: float = 0.9) -> int:
    """How many tokens the KV cache holds. Raises ValueError where not even the weights fit."""
    free = gpus * (gpu.memory_bytes * utilization - RESERVED_BYTES) - shape.parameters * shape.weight_bytes
    if free <= 0:
        needed = shape.parameters * shape.weight_bytes / 2**30
        raise ValueError(
            f"{needed:.0f} GiB of weights do not fit {gpus} x {gpu.title} ({gpu.memory_bytes / 2**30:.0f} GiB each)"
        )
    return int(free / shape.kv_bytes_per_token)
