"""From a source to a local folder: fetched once for each node, however many processes ask, and held while in use."""

import contextlib
import errno
import logging
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from cluster.artifacts.cache import Held, ModelCache
from cluster.artifacts.download import Download
from cluster.artifacts.folder import FolderOrigin
from cluster.artifacts.manifest import RemoteFile, boot_id, entry_name, problem_of, version_of
from cluster.artifacts.sources import S3, ArtifactError, StorageUnavailable, folder_of, resolve_source
from cluster.fetch_progress import FetchStep, ProgressReport, quiet
from cluster.spec import Artifacts

logger = logging.getLogger(__name__)


class Origin(Protocol):
    """Where files come from."""

    source: str

    def listing(self) -> tuple[RemoteFile, ...]:
        """All files that the engine may need. Raises ArtifactError."""

    def fetch(self, download: Download) -> None:
        """Fetches what `download` lacks, checks each file, and notes it. Raises ArtifactError, OSError."""


@dataclass(frozen=True, slots=True)
class LocalFiles:
    """Where a source's files are: a folder's path (or a name that the engine resolves by itself), and the lease on it,
    where it is in the cache."""

    path: str
    held: Held | None = None


def open_cache(settings: Artifacts) -> ModelCache:
    """The cache of this node. Raises ArtifactError."""
    return ModelCache(Path(settings.cache), settings.max_bytes)


def local_files(source: str, settings: Artifacts, report: ProgressReport = quiet) -> LocalFiles:
    """The files of a source on this node, fetched if need be. Raises ArtifactError.

    When the store cannot be used, a version that this node already has is.
    """
    origin = origin_of(source, settings)
    if origin is None:
        return LocalFiles(_for_engine(resolve_source(source)))
    cache = open_cache(settings)
    try:
        held = pull(origin, cache, report)
    except StorageUnavailable as error:
        found = cache.newest(origin.source)
        if found is not None:
            if not _problems(cache, found):
                logger.warning("%s; this node's own copy is used, as it was fetched before", error)
                return LocalFiles(str(found.files), found)
            found.release()
        if _is_in_hub_cache(origin):
            logger.warning("%s; left to the engine, since Hugging Face's own cache knows the model", error)
            return LocalFiles(_for_engine(source))
        raise
    return LocalFiles(str(held.files), held)


def origin_of(source: str, settings: Artifacts) -> Origin | None:
    """Where to fetch a source from; None where the engine is to use it as it is. Raises ArtifactError."""
    folder = folder_of(source) if settings.copy_folders else None
    if folder is not None and not os.path.exists(folder):
        return FolderOrigin(str(folder))  # which cannot be listed: a copy may be there
    resolved = resolve_source(source)
    if resolved.startswith(S3):
        from cluster.artifacts.s3 import S3Origin  # boto3 takes half a second to import

        return S3Origin(resolved)
    if resolved.startswith("/"):
        return None if folder is None else FolderOrigin(resolved)
    if os.environ.get("HF_HUB_OFFLINE", "0").upper() in ("1", "ON", "YES", "TRUE"):
        return None
    from cluster.artifacts.hub import HubOrigin

    return HubOrigin(resolved)


def _for_engine(resolved: str) -> str:
    if resolved.startswith("/"):
        return resolved
    from cluster.artifacts.hub import HubOrigin

    return HubOrigin(resolved).for_engine()


def _is_in_hub_cache(origin: Origin) -> bool:
    known: Callable[[], bool] | None = getattr(origin, "is_in_hub_cache", None)
    return known is not None and known()


def pull(origin: Origin, cache: ModelCache, report: ProgressReport = quiet) -> Held:
    """The origin's files as they are now, in the cache. Processes that ask at the same time wait for the first one.
    Raises ArtifactError; the files that are whole by then are kept, and used by the next pull."""
    files = origin.listing()
    name = entry_name(origin.source, version_of(files))
    total = sum(file.size for file in files)
    report(FetchStep.LISTING, 0, total)
    if (held := _ready(cache, name, may_read=False)) is not None:
        report(FetchStep.READY, total, total)
        return held
    try:
        with cache.downloading(name, lambda there: report(FetchStep.WAITING, min(there, total), total)) as partial:
            if (held := _ready(cache, name, may_read=True)) is not None:
                report(FetchStep.READY, total, total)
                return held
            download = Download(partial, origin.source, files, report)
            cache.make_room(name, origin.source, total)
            origin.fetch(download)
            held = cache.publish(name, download.manifest)
    except OSError as error:
        raise ArtifactError(_disk_trouble(origin.source, cache.folder, error)) from error
    report(FetchStep.READY, total, total)
    return held


def _disk_trouble(source: str, folder: Path, error: OSError) -> str:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return f"source {source!r}: the disk of {folder} is full; free some space; what is whole is kept"
    return f"source {source!r}: {folder}: {error.strerror or error}"


def _ready(cache: ModelCache, name: str, may_read: bool) -> Held | None:
    """A lease on the entry, if it is there and sound. After a start of the machine its files are read once
    (`may_read`); a damaged entry is removed."""
    held = cache.hold(name)
    if held is None:
        return None
    try:
        if not may_read and _is_of_earlier_boot(held):
            held.release()
            return None
        problems = _problems(cache, held)
    except ArtifactError as error:  # a manifest that cannot be read
        problems = [str(error)]
    if not problems:
        return held
    held.release()
    if may_read:
        logger.warning("%s is damaged (%s), and fetched again", name, "; ".join(problems))
        with contextlib.suppress(ArtifactError):  # in use: replaced when the new one is whole
            cache.evict(name)
    return None


def _is_of_earlier_boot(held: Held) -> bool:
    return held.manifest().boot_id not in (None, boot_id())


def _problems(cache: ModelCache, held: Held) -> list[str]:
    """Its damage; files of an earlier boot are read for it, once. Raises ArtifactError."""
    is_of_earlier_boot = _is_of_earlier_boot(held)
    problems = damage(held, read=is_of_earlier_boot)
    if is_of_earlier_boot and not problems:
        cache.settle(held)
    return problems


def damage(held: Held, read: bool = False) -> list[str]:
    """What is wrong with an entry's files. Raises ArtifactError."""
    problems = (problem_of(file, held.files, read) for file in held.manifest().files)
    return [problem for problem in problems if problem is not None]
