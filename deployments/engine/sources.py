"""The files that one replica needs: its model's, its draft's, its adapters'; found as `cluster.artifacts` finds models.

`args.py` hands them to vLLM; `environment.py` asks whether all of them are on this machine.
"""

from pathlib import Path

from cluster.artifacts import ArtifactError, resolve_source
from cluster.spec import Model


def resolve_adapter(source: str) -> str:
    """What to hand to vLLM for a LoRA adapter's `source`: a local folder with an `adapter_config.json`, or a hub name. Raises ArtifactError."""
    if not source.startswith(("/", "./", "../", "~")):
        return source
    folder = Path(source).expanduser().resolve()
    if not (folder / "adapter_config.json").is_file():
        raise ArtifactError(f"source {source!r}: {folder} holds no adapter_config.json; allowed: an adapter's folder or a hub name")
    return str(folder)


def all_local(model: Model) -> bool:
    """Whether nothing of `model` has to come from a hub. Raises ArtifactError."""
    speculative = model.settings.speculative
    models = [model.source, *([speculative.model] if speculative and speculative.model else [])]
    resolved = [*map(resolve_source, models), *(resolve_adapter(adapter.source) for adapter in model.adapters)]
    return all(path.startswith("/") for path in resolved)
