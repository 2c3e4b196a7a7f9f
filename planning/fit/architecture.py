"""A model's matrices, layer by layer, from its `config.json`: decoders with grouped-query or latent attention (MLA),
sliding windows and experts. What is not modelled (recurrent layers, encoders) is refused.

Names follow the checkpoints', since quantization leaves matrices out by name.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil
from typing import Any, Literal

from planning.fit.config import Fields, Vision, longest_context, read_vision, rope_elements
from planning.fit.quantization import NotModelled, Quantization, read_quantization

VOCABULARY_TILE = 64
"""vLLM pads embeddings to a multiple of it (`vocab_parallel_embedding.py`)."""


@dataclass(frozen=True, slots=True)
class Matrix:
    """`count` equal weight matrices. `split`: which side tensor parallelism divides; `kv`: by KV heads."""

    name: str
    inputs: int
    outputs: int
    count: int = 1
    split: Literal["inputs", "outputs", "none", "kv"] = "none"

    @property
    def of_experts(self) -> bool:
        """Whether it is one for each expert, of which a token uses a few."""
        return ".experts." in self.name


@dataclass(frozen=True, slots=True)
class Layer:
    """One block of the decoder. `vectors`: elements of norms and biases. `window`: in tokens (None: all of them)."""

    matrices: tuple[Matrix, ...]
    vectors: int
    window: int | None
    width: int
    expert_width: int
    experts_a_token: int


@dataclass(frozen=True, slots=True)
class Architecture:
    """A decoder. Sizes are in elements.

    `latent`: the KV elements of a token and layer with MLA (0: keys and values by head); `latent_bytes`: bytes beside
    them. `longest`: the context that its config allows (None: it does not say).
    """

    kind: str
    hidden: int
    heads: int
    kv_heads: int
    head_size: int
    vocabulary: int
    tied: bool
    layers: tuple[Layer, ...]
    vision: Vision
    rope: int
    latent: int
    latent_bytes: int
    longest: int | None
    dtype: str
    quantization: Quantization | None

    def kv_elements(self, tensor_parallel: int = 1) -> int:
        """Of one token in one layer on one GPU. Latent attention is not divided; too few KV heads are repeated."""
        return self.latent or 2 * ceil(self.kv_heads / tensor_parallel) * self.head_size

    @property
    def sums_norms(self) -> bool:
        """Whether queries and keys are normalized over all heads, so that GPUs that share them sum once more."""
        return self.kind == "minimax_m2"


_TIED_BY_DEFAULT = ("gemma", "cohere")
_RECURRENT = ("linear_attention", "mamba", "recurrent", "conv", "linear")
_DEFAULTS: dict[str, dict[str, int]] = {
    "gemma3_text": {
        "vocab_size": 262_208,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "max_position_embeddings": 131_072,
    },
}
"""What some published configs leave out, as Transformers fills it in."""


def read_architecture(config: Mapping[str, Any]) -> Architecture:
    """The architecture that a `config.json` describes. Raises NotModelled, which names the key."""
    try:
        return _read(config)
    except NotModelled:
        raise
    except (AttributeError, IndexError, KeyError, OverflowError, TypeError, ValueError) as error:
        raise NotModelled(f"config.json is not that of a decoder: {error!r}") from error


def _read(config: Mapping[str, Any]) -> Architecture:
    text = config.get("text_config") or config.get("llm_config") or config
    if not isinstance(text, Mapping):
        raise NotModelled("config.json: text_config: allowed: a mapping")
    kind = str(text.get("model_type") or config.get("model_type") or "")
    text = {**_DEFAULTS.get(kind, {}), **text}
    _refuse_unknown(config, text)
    fields = Fields(text)
    hidden, heads = max(1, fields.whole("hidden_size")), max(1, fields.whole("num_attention_heads"))
    latent = fields.whole("kv_lora_rank", 0)
    rope = fields.whole("qk_rope_head_dim", 0)
    kv_heads = heads if latent else max(1, fields.whole("num_key_value_heads", heads))
    head_size = fields.whole("head_dim", 0) or max(1, hidden // heads)
    windows = _windows(text, kind, fields)
    attention = (
        _latent_attention(fields, hidden, heads)
        if latent
        else _attention(text, kind, hidden, heads, kv_heads, head_size)
    )
    tied = config.get("tie_word_embeddings", text.get("tie_word_embeddings"))
    indexer = fields.whole("index_head_dim", 0)
    return Architecture(
        kind=kind,
        hidden=hidden,
        heads=heads,
        kv_heads=kv_heads,
        head_size=head_size,
        vocabulary=ceil(fields.whole("vocab_size") / VOCABULARY_TILE) * VOCABULARY_TILE,
        tied=kind.startswith(_TIED_BY_DEFAULT) if tied is None else bool(tied),
        layers=tuple(_layer(text, kind, fields, index, window, attention) for index, window in enumerate(windows)),
        vision=read_vision(config, hidden),
        rope=rope_elements(text, fields, rope or head_size),
        latent=latent + rope if latent else 0,
        latent_bytes=indexer + 4 if indexer else 0,
        longest=longest_context(text, kind),
        dtype=str(
            text.get("dtype")
            or text.get("torch_dtype")
            or config.get("dtype")
            or config.get("torch_dtype")
            or "bfloat16"
        ),
        quantization=read_quantization(config.get("quantization_config") or text.get("quantization_config")),
    )


def _refuse_unknown(config: Mapping[str, Any], text: Mapping[str, Any]) -> None:
    kinds = set(text.get("layer_types") or ()) | set(text.get("layers_block_type") or ())
    recurrent = sorted(kind for kind in kinds if str(kind).startswith(_RECURRENT))
    if recurrent or any(
        key in text for key in ("ssm_cfg", "mamba_d_state", "mamba_n_heads", "state_size", "block_configs")
    ):
        kinds_said = ", ".join(recurrent) or "recurrent, or of differing sizes"
        raise NotModelled(f"config.json: layers of another kind ({kinds_said}): not modelled")
    if (
        config.get("is_encoder_decoder")
        or text.get("altup_num_inputs")
        or str(text.get("model_type", "")).endswith(("bert", "roberta"))
    ):
        raise NotModelled(f"config.json: model_type = {text.get('model_type')!r}: not a plain decoder, not modelled")


def _windows(text: Mapping[str, Any], kind: str, fields: Fields) -> list[int | None]:
    count = fields.whole("num_hidden_layers")
    if not 1 <= count <= 1_000:
        raise NotModelled(f"config.json: num_hidden_layers = {count}: allowed: 1 to 1000")
    window = fields.whole("sliding_window", 0) or None
    kinds = text.get("layer_types")
    if (
        window is None
        or text.get("use_sliding_window") is False
        or (kind.startswith("qwen") and not text.get("use_sliding_window"))
    ):
        return [None] * count
    if kinds:
        if len(kinds) < count:
            raise NotModelled(
                f"config.json: layer_types has {len(kinds)} entries; allowed: num_hidden_layers = {count}"
            )
        return [window if str(one).startswith("sliding") else None for one in kinds[:count]]
    pattern = fields.whole(
        "sliding_window_pattern", {"gemma2": 2, "gpt_oss": 2, "gemma3_text": 6, "cohere2": 4}.get(kind, 0)
    )
    full_below = fields.whole("max_window_layers", 0) if kind.startswith("qwen") else 0
    return [
        None if index < full_below or (pattern and (index + 1) % pattern == 0) else window for index in range(count)
    ]


def _attention(
    text: Mapping[str, Any], kind: str, hidden: int, heads: int, kv_heads: int, head_size: int
) -> tuple[tuple[Matrix, ...], int]:
    biased = bool(text.get("attention_bias")) or kind.startswith("qwen2")
    matrices = (
        Matrix("self_attn.q_proj", hidden, heads * head_size, split="outputs"),
        Matrix("self_attn.k_proj", hidden, kv_heads * head_size, split="kv"),
        Matrix("self_attn.v_proj", hidden, kv_heads * head_size, split="kv"),
        Matrix("self_attn.o_proj", heads * head_size, hidden, split="inputs"),
    )
    return matrices, (heads + 2 * kv_heads) * head_size if biased else 0


def _latent_attention(fields: Fields, hidden: int, heads: int) -> tuple[tuple[Matrix, ...], int]:
    """MLA. vLLM keeps `kv_b_proj` a second time, in 16 bits, to decode in latent space (`mla_attention.py`)."""
    rank, rope, nope, value = (
        fields.whole(key) for key in ("kv_lora_rank", "qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim")
    )
    queries, query_rank = heads * (nope + rope), fields.whole("q_lora_rank", 0)
    if query_rank:
        query: tuple[Matrix, ...] = (
            Matrix("self_attn.q_a_proj", hidden, query_rank),
            Matrix("self_attn.q_b_proj", query_rank, queries, split="outputs"),
        )
    else:
        query = (Matrix("self_attn.q_proj", hidden, queries, split="outputs"),)
    return (
        *query,
        Matrix("self_attn.kv_a_proj_with_mqa", hidden, rank + rope),
        Matrix("self_attn.kv_b_proj", rank, heads * (nope + value), split="outputs"),
        Matrix("self_attn.absorbed", rank, heads * (nope + value), split="outputs"),
        Matrix("self_attn.o_proj", heads * value, hidden, split="inputs"),
    ), rank + query_rank


_UNGATED = ("gpt_neox", "nemotron", "persimmon", "phi", "starcoder2")
"""Two matrices in the feed-forward part instead of three."""


def _layer(
    text: Mapping[str, Any],
    kind: str,
    fields: Fields,
    index: int,
    window: int | None,
    attention: tuple[tuple[Matrix, ...], int],
) -> Layer:
    matrices, vectors = attention
    hidden = fields.whole("hidden_size")
    experts = fields.first("num_local_experts", "num_experts", "n_routed_experts")
    if not experts or not _is_mixture(text, fields, index):
        width = (
            fields.first("intermediate_size_mlp", "intermediate_size") if experts else fields.whole("intermediate_size")
        )
        return Layer(
            (*matrices, *_feed_forward("mlp", hidden, width, 1, kind not in _UNGATED)),
            vectors + 2 * hidden,
            window,
            width,
            0,
            0,
        )
    width = fields.first("moe_intermediate_size", "intermediate_size")
    shared = (
        fields.first("shared_expert_intermediate_size")
        or fields.first("n_shared_experts") * width
        or (width if kind.startswith("llama4") else 0)
    )
    parts = (Matrix("mlp.gate", hidden, experts), *_feed_forward("mlp.experts", hidden, width, experts, True))
    if shared:
        parts += _feed_forward("mlp.shared_experts", hidden, shared, 1, True)
    if kind == "gpt_oss":
        vectors += experts * (2 * width + hidden)
    a_token = fields.first("num_experts_per_tok", "num_experts_per_token", "moe_topk") or 1
    return Layer((*matrices, *parts), vectors + 2 * hidden, window, shared, width, a_token)


def _feed_forward(name: str, hidden: int, width: int, count: int, gated: bool) -> tuple[Matrix, ...]:
    up, down = (
        Matrix(f"{name}.up_proj", hidden, width, count, "outputs"),
        Matrix(f"{name}.down_proj", width, hidden, count, "inputs"),
    )
    return (Matrix(f"{name}.gate_proj", hidden, width, count, "outputs"), up, down) if gated else (up, down)


def _is_mixture(text: Mapping[str, Any], fields: Fields, index: int) -> bool:
    if text.get("moe_layers") is not None:
        return index in text["moe_layers"]
    if index < fields.whole("first_k_dense_replace", 0) or index in (text.get("mlp_only_layers") or ()):
        return False
    frequency = text.get("moe_layer_freq")
    if isinstance(frequency, list):
        return index < len(frequency) and bool(frequency[index])
    if isinstance(frequency, int) and frequency > 1:
        return index % frequency == 0
    step = fields.first("decoder_sparse_step", "interleave_moe_layer_step") or 1
    return (index + 1) % step == 0
