"""The files of a replica's model, on its node before vLLM starts."""

import importlib.util
import logging
import time
from dataclasses import dataclass
from pathlib import Path

from cluster.artifacts import ArtifactError, Held, local_files
from cluster.fetch_progress import FetchMeter, FetchStep
from cluster.spec import Artifacts, Model
from cluster.versions import ENGINE, content_version, versions_here
from deployments.engine.start_clock import StartClock
from deployments.starts.phases import Phase

logger = logging.getLogger(__name__)
_LOG_EVERY_S = 10.0
_AT_REST = (FetchStep.LISTING, FetchStep.READY)


@dataclass(frozen=True, slots=True)
class LocalModel:
    """A model whose sources are folders of this node, and the leases that keep these there."""

    model: Model
    leases: tuple[Held, ...] = ()

    @property
    def version(self) -> str:
        """Another where the weights, the settings or the engine are others; empty where the weights' is not known,
        since the engine reads them from elsewhere."""
        cached = {str(held.files) for held in self.leases}  # the name of such a folder has its version
        files = [source if source in cached else _folder_version(source) for source in self.model.sources]
        settings = self.model.model_dump_json(include={"name", "source", "engine", "simulated", "settings", "adapters"})
        return content_version(settings, versions_here().get(ENGINE, ""), *files) if all(files) else ""


def _folder_version(source: str) -> str:
    """What changes with any file of a folder; empty for what is none."""
    facts = []
    for one in sorted(Path(source).rglob("*")):
        stat = one.stat() if one.exists() else one.lstat()  # a link to nothing
        facts.append((str(one), stat.st_size, stat.st_mtime_ns))
    return str(facts) if facts else ""


def fetch_files(
    model: Model, artifacts: Artifacts, meter: FetchMeter | None = None, clock: StartClock | None = None
) -> LocalModel:
    """Fetches what this node lacks, once however many replicas ask. With `load: stream` the engine itself reads the
    weights. `meter`, where given, tells other threads how far it is; `clock` knows while something is fetched or waited
    for. Raises ArtifactError."""
    if model.load == "stream" and importlib.util.find_spec("runai_model_streamer") is None:
        raise ArtifactError(
            f"models.{model.name}.load = 'stream': needs the package runai-model-streamer[s3] on this node; allowed "
            "without it: cache"
        )
    meter = meter or FetchMeter()
    if model.simulated is not None:
        return LocalModel(model)
    leases: list[Held] = []
    clock = clock or StartClock()
    clock.enter(Phase.FETCH)
    clock.fetching = meter.progress
    progress: list[_LoggedProgress] = []

    def local(source: str) -> str:
        progress.append(_LoggedProgress(source, meter))
        found = local_files(source, artifacts, progress[-1])
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
    if not any(one.came for one in progress):
        clock.retract()
    clock.enter(Phase.ENVIRONMENT)
    clock.fetching = None
    return LocalModel(model.model_copy(update=changes), tuple(leases))


class _LoggedProgress:
    """Progress, to `meter`, and in the replica's log every ten seconds."""

    def __init__(self, source: str, meter: FetchMeter) -> None:
        self.came = False
        """Whether anything had to come to this node, or to be waited for."""
        self._source = source
        self._count, self._meter = meter.of(), meter
        self._at = 0.0

    def __call__(self, step: FetchStep, there: int, total: int) -> None:
        self._count(step, there, total)
        self.came |= step not in _AT_REST
        if time.monotonic() - self._at > _LOG_EVERY_S or step is FetchStep.READY:
            self._at = time.monotonic()
            rate = self._meter.progress().bytes_per_s / 1e6
            logger.info("%s: %s, %d of %d MiB, %.0f MB/s", self._source, step, there >> 20, total >> 20, rate)
