"""A hub name (`org/model`, or `org/model@revision`) as the origin of files, by huggingface_hub: its token, its endpoint
(`HF_ENDPOINT`), its resume. Checked here against the hub's checksums."""

import glob
import hashlib
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from huggingface_hub import HfApi, constants, snapshot_download, try_to_load_from_cache
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    LocalEntryNotFoundError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from cluster.artifacts.download import Download
from cluster.artifacts.manifest import CachedFile, RemoteFile, checked_listing, crc_of
from cluster.artifacts.sources import ArtifactError, StorageUnavailable

_OTHER_FORMATS = (".bin", ".pt", ".pth", ".ckpt", ".h5", ".msgpack", ".onnx", ".gguf", ".tflite", ".ot")
_UNAVAILABLE: tuple[type[Exception], ...] = (
    LocalEntryNotFoundError,
    OfflineModeIsEnabled,
    *(kind for kind in HfHubHTTPError.__mro__ if kind.__name__ == "HTTPError" and issubclass(kind, Exception)),
)
"""HTTPError is that of huggingface_hub's HTTP library, which depends on its version: a connection that failed, a status
that is none of the others."""
ResultT = TypeVar("ResultT")


def engine_files(names: Sequence[str]) -> list[str]:
    """The files that an engine reads: where there are safetensors, no weights of another format; no hidden files, and
    no second copy of the weights in `original/` or as `consolidated*`."""
    top = [name for name in names if "/" not in name]
    has_safetensors = any(name.endswith(".safetensors") for name in top)
    has_sharded = any(name.endswith(".safetensors") and not name.startswith("consolidated") for name in top)
    return [
        name
        for name in names
        if not name.startswith((".", "original/"))
        and not (has_safetensors and name.endswith(_OTHER_FORMATS))
        and not (has_sharded and name.startswith("consolidated"))
    ]


class HubOrigin:
    """The files of a model on the hub. A file's tag is its SHA-256 (of a large file) or its git blob's SHA-1."""

    def __init__(self, source: str) -> None:
        self.source = source
        self._repository, _, revision = source.partition("@")
        self._revision: str | None = revision or None

    def listing(self) -> tuple[RemoteFile, ...]:
        """What an engine reads of the repository, at one commit. Raises ArtifactError."""
        info = self._asked(
            lambda: HfApi().model_info(
                self._repository,
                revision=self._revision,
                files_metadata=True,
                timeout=constants.HF_HUB_ETAG_TIMEOUT,  # by default it waits for ever
            )
        )
        self._revision = info.sha
        found = {file.rfilename: file for file in info.siblings or ()}
        files = []
        for name in engine_files(list(found)):
            file = found[name]
            tag = f"sha256:{file.lfs.sha256}" if file.lfs else f"git:{file.blob_id}"
            files.append(RemoteFile(name, int(file.size or 0), tag, f"{self._repository}/{name}"))
        if not files:
            raise ArtifactError(f"source {self.source!r}: the repository holds no model's files")
        return checked_listing(self.source, files)

    def fetch(self, download: Download) -> None:
        """Fetches what is missing. Raises ArtifactError, OSError."""
        self._asked(
            lambda: snapshot_download(
                self._repository,
                revision=self._revision,
                local_dir=download.folder,
                allow_patterns=[glob.escape(file.name) for file in download.missing],
            )
        )
        for file in download.missing:
            download.note(self._checked(file, download.folder / file.name))
            download.came(file.size)
        shutil.rmtree(download.folder / ".cache", ignore_errors=True)

    def _checked(self, file: RemoteFile, path: Path) -> CachedFile:
        kind, _, expected = file.tag.partition(":")
        digest = hashlib.sha256() if kind == "sha256" else hashlib.sha1(usedforsecurity=False)
        if kind == "git":
            digest.update(f"blob {file.size}\0".encode())
        with path.open("rb") as opened:
            while piece := opened.read(1 << 20):
                digest.update(piece)
        if digest.hexdigest() != expected:
            path.unlink()
            raise ArtifactError(f"{file.key}: its content does not match its {kind}; it was removed, try it again")
        return CachedFile(name=file.name, size=file.size, tag=file.tag, crc64nvme=crc_of(path), checked_by=kind)

    def is_in_hub_cache(self) -> bool:
        """Whether huggingface_hub's own cache holds the model's configuration, and so perhaps its files."""
        try:
            return isinstance(try_to_load_from_cache(self._repository, "config.json", revision=self._revision), str)
        except HFValidationError:
            return False

    def for_engine(self) -> str:
        """How the engine finds the model in that cache: by its name; a revision, which it takes in no name, by its
        folder. Raises ArtifactError."""
        if self._revision is None:
            return self.source
        return self._asked(lambda: snapshot_download(self._repository, revision=self._revision, local_files_only=True))

    def _asked(self, ask: Callable[[], ResultT]) -> ResultT:
        where = f"source {self.source!r}"
        try:
            return ask()
        except GatedRepoError as error:
            raise ArtifactError(
                f"{where}: gated; allowed: a token (HF_TOKEN) whose owner has been granted access"
            ) from error
        except RevisionNotFoundError as error:
            raise ArtifactError(
                f"{where}: the repository has no such revision; allowed: a branch, tag or commit"
            ) from error
        except (RepositoryNotFoundError, HFValidationError) as error:
            raise ArtifactError(
                f"{where}: no such model on the hub, or a private one; allowed: a hub name, and for a private one a "
                "token (HF_TOKEN)"
            ) from error
        except _UNAVAILABLE as error:
            words = " ".join(str(error).split()) or type(error).__name__
            raise StorageUnavailable(
                f"{where}: the hub cannot be used: {words}; what has been fetched is kept"
            ) from error
