"""The models of a cluster spec on the GPUs of their pools: what fits, what would not start, what is unknown."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cluster.artifacts import ArtifactError, resolve_source
from cluster.spec import ClusterSpec, Model
from planning.fit.architecture import read_architecture
from planning.fit.memory import GIB
from planning.fit.quantization import NotModelled
from planning.fit.verdict import Fit, fit


@dataclass(frozen=True, slots=True)
class ModelFit:
    """One model on one pool's GPUs (`place`): `fit`, or `unknown`, the reason why there is none.

    `model` names a group of a model with groups, too (`MODEL@GROUP`). `left_out`: what the figures do not count.
    """

    model: str
    place: str
    fit: Fit | None = None
    unknown: str | None = None
    left_out: tuple[str, ...] = ()

    @property
    def problems(self) -> list[str]:
        """Why the engine would not start."""
        return (
            []
            if self.fit is None
            else [f"models.{self.model} on {self.place}: {refusal}" for refusal in self.fit.refusals]
        )

    def row(self) -> tuple[str, ...]:
        """One cell for each of `COLUMNS`."""
        if self.fit is None:
            return (self.model, self.place)
        sizes = (self.fit.weights_bytes, self.fit.activation_bytes, self.fit.pool_bytes)
        weights, peak, pool = (f"{size / GIB:.2f}" for size in sizes)
        tokens, sequences = f"{self.fit.kv_tokens:,}", str(self.fit.sequences(self.fit.max_model_len))
        return (self.model, self.place, weights, peak, pool, f"{self.fit.kv_bytes_per_token:,}", tokens, sequences)


COLUMNS = (
    "model",
    "on",
    "weights GiB",
    "peak GiB",
    "KV pool GiB",
    "KV bytes/token",
    "KV tokens",
    "sequences of max_model_len",
)


def fits(spec: ClusterSpec) -> Iterator[ModelFit]:
    """Each model (each of its groups) that an engine runs, on each GPU type that it may run on."""
    for model in spec.views_in():
        seen = set()
        for region in spec.regions_of(model):
            accelerator = spec.pool_of(model, region).accelerator
            if model.engine == "vllm" and accelerator != "cpu" and accelerator not in seen:
                seen.add(accelerator)
                yield fit_on(spec, model, accelerator)


def fit_on(spec: ClusterSpec, model: Model, accelerator: str) -> ModelFit:
    """The fit of one model on that GPU."""
    place = f"{model.settings.ranks} x {accelerator}"
    try:
        if model.task == "embed":
            raise NotModelled("an embedding model")
        gpu = spec.hardware.gpu_named(accelerator)
        found = fit(read_architecture(config_of(model)), model.settings, gpu)
    except (ValueError, ArtifactError) as error:
        return ModelFit(model.group_key, place, unknown=str(error))
    speculative = model.settings.speculative
    left_out = (["LoRA adapters"] if model.adapters else []) + (
        ["the draft model"] if speculative and speculative.model else []
    )
    return ModelFit(model.group_key, place, found, left_out=tuple(left_out))


def config_of(model: Model) -> dict[str, Any]:
    """The `config.json` of a spec's model. Raises NotModelled and ArtifactError, as `config_in` does."""
    return config_in(model.source)


def config_in(source: str) -> dict[str, Any]:
    """A model's `config.json`, from its folder or from Hugging Face's cache. NVIDIA's checkpoints say how they are
    quantized in a file beside it.

    Raises NotModelled where it is not at hand, or cannot be read, and ArtifactError.
    """
    folder = Path(resolve_source(source))
    file, beside = (
        folder / name if folder.is_absolute() else _cached(source, name) for name in ("config.json", _QUANTIZED)
    )
    if file is None:
        raise NotModelled(f"{source}'s config.json is not on this machine")
    config = _object(file)
    if not config.get("quantization_config") and beside is not None and beside.exists():
        config["quantization_config"] = {"quant_method": "modelopt", **_object(beside)}
    return config


_QUANTIZED = "hf_quant_config.json"


def _object(file: Path) -> dict[str, Any]:
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise NotModelled(f"{file} cannot be read: {error}") from error
    if not isinstance(found, dict):
        raise NotModelled(f"{file}: allowed: a JSON object")
    return found


def _cached(repository: str, name: str) -> Path | None:
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    try:
        found = try_to_load_from_cache(repository, name)
    except HFValidationError:
        return None
    return Path(found) if isinstance(found, str) else None
