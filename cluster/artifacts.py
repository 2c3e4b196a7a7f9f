"""Where a model's files come from: the shipped demo model, a local folder, or a hub name that the engine resolves."""

from pathlib import Path

from cluster.files import shipped
from cluster.spec import ClusterSpec

_MARKS = ("config.json", "adapter_config.json")
"""A model's folder holds the first, an adapter's the second."""
_SHIPPED = {"demo": "demo/target", "demo-draft": "demo/draft"}


class ArtifactError(ValueError):
    """A model source that cannot be used; the message names it and what is allowed."""


def resolve_source(source: str) -> str:
    """What to hand to vLLM for a spec's `source`.

    `demo` and `demo-draft` are the shipped models. A source that starts with `/`, `./`, `../` or `~` is a local folder
    and must hold a `config.json` (an adapter's: an `adapter_config.json`). Anything else is a hub name, handed on as it
    is. Raises ArtifactError.
    """
    if source in _SHIPPED:
        try:
            return str(shipped(_SHIPPED[source]))
        except FileNotFoundError as error:
            raise ArtifactError(f"source {source!r}: {error}; allowed: a model's folder or a hub name") from None
    if not source.startswith(("/", "./", "../", "~")):
        return source
    try:
        folder = Path(source).expanduser().resolve()
    except RuntimeError as error:
        raise ArtifactError(f"source {source!r}: {error}; allowed: a model's folder, a hub name, or `demo`") from None
    if not any((folder / mark).is_file() for mark in _MARKS):
        raise ArtifactError(
            f"source {source!r}: {folder} holds no {' or '.join(_MARKS)}; allowed: a model's folder, a hub name, or "
            "`demo`"
        )
    return str(folder)


def missing_sources(spec: ClusterSpec) -> list[str]:
    """What is wrong with the sources of a spec's models, adapters and drafts on this machine."""
    problems = []
    for source in (source for model in spec.models for source in model.sources):
        try:
            resolve_source(source)
        except ArtifactError as error:
            problems.append(str(error))
    return problems
