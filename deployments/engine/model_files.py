"""The files of a replica's model, on its node before vLLM starts."""

import importlib.util
import logging
import time
from dataclasses import dataclass

from cluster.artifacts import ArtifactError, Held, local_files
from cluster.spec import Artifacts, Model

logger = logging.getLogger(__name__)
_LOG_EVERY_S = 10.0


@dataclass(frozen=True, slots=True)
class LocalModel:
    """A model whose sources are folders of this node, and the leases that keep these there."""

    model: Model
    leases: tuple[Held, ...] = ()


def fetch_files(model: Model, artifacts: Artifacts) -> LocalModel:
    """Fetches what this node lacks, once however many replicas ask. With `load: stream` the engine itself reads the
    weights. Raises ArtifactError."""
    if model.load == "stream" and importlib.util.find_spec("runai_model_streamer") is None:
        raise ArtifactError(
            f"models.{model.name}.load = 'stream': needs the package runai-model-streamer[s3] on this node; allowed "
            "without it: cache"
        )
    if model.simulated is not None:
        return LocalModel(model)
    leases: list[Held] = []

    def local(source: str) -> str:
        found = local_files(source, artifacts, _LoggedProgress(source))
        if found.held is not None:
            leases.append(found.held)
        return found.path

    changes: dict[str, object] = {} if model.load == "stream" else {"source": local(model.source)}
    changes["adapters"] = tuple(
        adapter.model_copy(update={"source": local(adapter.source)}) for adapter in model.adapters
    )
    draft = model.settings.speculative
    if draft is not None and draft.model is not None:
        speculative = draft.model_copy(update={"model": local(draft.model)})
        changes["settings"] = model.settings.model_copy(update={"speculative": speculative})
    return LocalModel(model.model_copy(update=changes), tuple(leases))


class _LoggedProgress:
    """Progress, in the replica's log every ten seconds."""

    def __init__(self, source: str) -> None:
        self._source = source
        self._at = 0.0

    def __call__(self, what: str, there: int, total: int) -> None:
        if time.monotonic() - self._at > _LOG_EVERY_S or what == "ready":
            self._at = time.monotonic()
            logger.info("%s: %s, %d of %d MiB", self._source, what, there >> 20, total >> 20)
