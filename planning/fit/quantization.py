"""How quantized weights are stored, from `quantization_config`: bits a weight, scales, and what is left out."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from math import ceil
from typing import Any


class NotModelled(ValueError):
    """A `config.json` whose memory is not modelled here. The message says why."""


@dataclass(frozen=True, slots=True)
class Quantization:
    """`method` as vLLM names it.

    One scale of `scale_bytes` (and a zero point of `zero_bits`) for `group` inputs of an output (0: for all of them),
    or for a square of `block` inputs and outputs. `skipped`: names or patterns of modules that stay as they are.
    `kv_bytes`: of a KV element, where the checkpoint says so.
    """

    method: str
    bits: int
    group: int = 0
    scale_bytes: int = 4
    zero_bits: int = 0
    block: int = 0
    skipped: tuple[str, ...] = ()
    kv_bytes: int | None = None

    def covers(self, name: str) -> bool:
        """Whether the matrix of that name is quantized. Embeddings and the routers of experts never are."""
        parts = name.split(".")
        if self.method == "mxfp4" and "experts" not in parts:
            return False
        if parts[-1] in ("embed_tokens", "lm_head", "gate", "absorbed"):
            return False
        return not any(_matches(pattern, name, parts) for pattern in self.skipped)

    def bytes_of(self, inputs: int, outputs: int) -> float:
        """Of a matrix with its scales."""
        if self.block:
            scales = ceil(inputs / self.block) * ceil(outputs / self.block)
        else:
            scales = outputs * (ceil(inputs / self.group) if self.group else 1)
        return inputs * outputs * self.bits / 8 + scales * (self.scale_bytes + self.zero_bits / 8)


def _matches(pattern: str, name: str, parts: Sequence[str]) -> bool:
    if pattern.startswith("re:"):
        return re.match(pattern[3:], name) is not None
    if "*" in pattern:
        return fnmatch(name, pattern) or fnmatch(name, f"{pattern}.*")
    segments = pattern.split(".")
    return any(list(parts[at : at + len(segments)]) == segments for at in range(len(parts)))


ONLINE = {"fp8": Quantization("fp8", 8)}
"""What vLLM quantizes by itself while it loads a checkpoint of 16 bits."""


def read_quantization(section: Mapping[str, Any] | None) -> Quantization | None:
    """What a `quantization_config` says; None: the checkpoint is not quantized. Raises NotModelled."""
    if not section:
        return None
    method = str(section.get("quant_method", "")).lower()
    reader = _READERS.get(method)
    if reader is None:
        raise NotModelled(f"quantization_config.quant_method = {method!r}: allowed: {', '.join(sorted(_READERS))}")
    try:
        return reader(section)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise NotModelled(f"quantization_config of {method!r} cannot be read: {error!r}") from error


def _fp8(section: Mapping[str, Any]) -> Quantization:
    block = section.get("weight_block_size")
    return Quantization("fp8", 8, block=int(block[0]) if block else 0, skipped=_names(section))


def _int_groups(section: Mapping[str, Any]) -> Quantization:
    """AWQ and GPTQ: packed integers, an FP16 scale and a zero point for each group."""
    bits, group = (
        int(section.get("bits") or section["w_bit"]),
        int(section.get("group_size") or section.get("q_group_size") or 0),
    )
    method = str(section["quant_method"]).lower()
    return Quantization(method, bits, max(0, group), 2, bits, skipped=_names(section))


def _compressed_tensors(section: Mapping[str, Any]) -> Quantization:
    weights = next(iter(section["config_groups"].values()))["weights"]
    bits, group = int(weights["num_bits"]), int(weights.get("group_size") or 0)
    small_scale = weights.get("type") == "float" and bits == 4
    block = weights.get("block_structure") if weights.get("strategy") == "block" else None
    scale_bytes = 1 if small_scale else 2 if group > 0 else 4
    kv = section.get("kv_cache_scheme")
    return Quantization(
        "compressed-tensors",
        bits,
        0 if block else max(0, group),
        scale_bytes,
        block=int(block[0]) if block else 0,
        skipped=_names(section),
        kv_bytes=int(kv["num_bits"]) // 8 if kv else None,
    )


def _modelopt(section: Mapping[str, Any]) -> Quantization:
    inner = section.get("quantization") or section
    algorithm, kv = str(inner["quant_algo"]).upper(), inner.get("kv_cache_quant_algo") or inner.get("kv_cache_scheme")
    kv_bytes = 1 if kv else None
    if algorithm == "FP8":
        return Quantization("modelopt", 8, skipped=_names(inner), kv_bytes=kv_bytes)
    if algorithm == "NVFP4":
        return Quantization(
            "modelopt_fp4", 4, int(inner.get("group_size") or 16), 1, skipped=_names(inner), kv_bytes=kv_bytes
        )
    raise NotModelled(f"quantization_config.quant_algo = {algorithm!r}: allowed: FP8, NVFP4")


def _names(section: Mapping[str, Any]) -> tuple[str, ...]:
    for key in ("ignore", "ignored_layers", "modules_to_not_convert", "exclude_modules"):
        if section.get(key):
            return tuple(str(name) for name in section[key])
    return ()


_READERS: dict[str, Callable[[Mapping[str, Any]], Quantization]] = {
    "awq": _int_groups,
    "compressed-tensors": _compressed_tensors,
    "fbgemm_fp8": lambda section: Quantization("fbgemm_fp8", 8, skipped=_names(section)),
    "fp8": _fp8,
    "gptq": _int_groups,
    "modelopt": _modelopt,
    "mxfp4": lambda _section: Quantization("mxfp4", 4, 32, 1),
}
