"""Reads a `config.json`: its numbers, with errors that name the key, and what stands beside the decoder's layers."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from planning.fit.quantization import NotModelled

LARGEST = 1 << 40


class Fields:
    """Reads numbers out of a config, with errors that name the key."""

    def __init__(self, data: Mapping[str, Any]) -> None:
        self.data = data

    def whole(self, key: str, default: int | None = None) -> int:
        value = self.data.get(key)
        if value is None:
            if default is None:
                raise NotModelled(
                    f"config.json: {key}: missing; allowed: that of a decoder (a whole number, 1 or more)"
                )
            return default
        if (
            isinstance(value, bool)
            or not isinstance(value, int | float)
            or not 0 <= value <= LARGEST
            or value != int(value)
        ):
            raise NotModelled(f"config.json: {key} = {value!r}: allowed: a whole number, 0 to {LARGEST}")
        return int(value)

    def first(self, *keys: str) -> int:
        return next((self.whole(key) for key in keys if self.data.get(key)), 0)


@dataclass(frozen=True, slots=True)
class Vision:
    """A vision tower. `weights`: with what joins it to the decoder, right to about a tenth of the tower. `inner`:
    elements that its feed-forward part holds of a patch at once; `beside`: those that are held whole meanwhile.
    `patches`: of the largest image, which becomes so many `tokens` of the prompt (0: the config does not say)."""

    weights: int = 0
    beside: int = 0
    inner: int = 0
    patches: int = 0
    tokens: int = 0


def read_vision(config: Mapping[str, Any], hidden: int) -> Vision:
    section = config.get("vision_config")
    if not isinstance(section, Mapping) or not section:
        return Vision()
    fields = Fields(section)
    width, depth = fields.first("embed_dim", "hidden_size"), fields.first("num_hidden_layers", "depth", "num_layers")
    inner = fields.first("intermediate_size") or int(width * float(section.get("mlp_ratio") or 4))
    gated = str(section.get("model_type", "")) in ("pixtral", "qwen2_5_vl")
    patch = fields.first("patch_size", "spatial_patch_size") or 14
    merged = fields.first("spatial_merge_size") or Fields(config).first("spatial_merge_size")
    patches = (fields.first("image_size") // patch) ** 2
    positions = 0 if gated else patches
    sides = 3 if gated else 2
    tower = depth * (4 * width * width + sides * width * inner) + (3 * patch * patch + positions) * width
    join = (merged * merged * width * width if merged > 1 else 0) + width * hidden + hidden * hidden
    tokens = Fields(config).first("mm_tokens_per_image") or patches // max(1, merged) ** 2
    # Seven tensors of the tower's width in vLLM's Pixtral, five in its SigLIP (live tensors, counted on a CPU).
    return Vision(tower + join, (7 if gated else 5) * width, sides * inner, patches, tokens if patches else 0)


def _rope(text: Mapping[str, Any]) -> Mapping[str, Any]:
    scaling = text.get("rope_parameters") or text.get("rope_scaling") or {}
    return scaling if isinstance(scaling, Mapping) else {}


def rope_elements(text: Mapping[str, Any], fields: Fields, head_size: int) -> int:
    """The table of sines and cosines: a row for each position (YaRN: each scaled one)."""
    scaling = _rope(text)
    positions = fields.whole("max_position_embeddings", 0)
    original, factor = scaling.get("original_max_position_embeddings"), scaling.get("factor")
    if scaling.get("rope_type", scaling.get("type")) in ("yarn", "deepseek_yarn") and original and factor:
        positions = int(original * factor)
    return positions * int(
        head_size * float(text.get("partial_rotary_factor") or scaling.get("partial_rotary_factor") or 1)
    )


_SCALED_BEFORE = ("default", "su", "longrope", "llama3", "yarn", "deepseek_yarn", "deepseek_llama_scaling", "mrope")
"""Kinds of RoPE whose config has the scaled length already (`_get_and_verify_max_len`)."""


def longest_context(text: Mapping[str, Any], kind: str) -> int | None:
    lengths = [
        text[key]
        for key in ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length", "max_sequence_length")
        if text.get(key)
    ]
    longest = text.get("model_max_length") or (min(lengths) if lengths else None)
    scaling = _rope(text)
    rope_kind, factor = scaling.get("rope_type", scaling.get("type", "default")), scaling.get("factor")
    if longest is None or "gemma3" in kind or rope_kind in _SCALED_BEFORE or not factor:
        return None if longest is None else int(longest)
    return int(longest * factor)
