"""A folder, perhaps of a network file system, as the origin of files."""

import os
import stat
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

from awscrt.checksums import crc64nvme

from cluster.artifacts.download import Download
from cluster.artifacts.manifest import PIECE, CachedFile, RemoteFile, checked_listing
from cluster.artifacts.sources import ArtifactError, StorageUnavailable

_FILES_AT_ONCE = 4


class FolderOrigin:
    """The files below `source`, an absolute path. A file's tag is its time of change."""

    def __init__(self, source: str) -> None:
        self.source = source

    def listing(self) -> tuple[RemoteFile, ...]:
        """All files below, also of linked folders, without hidden ones. Raises ArtifactError."""
        root = Path(self.source)
        files = []
        try:
            for path in self._below(root, ()):
                facts = path.stat()
                if not stat.S_ISREG(facts.st_mode):
                    raise ArtifactError(f"source {self.source!r}: {path} is neither a file nor a folder")
                files.append(RemoteFile(str(path.relative_to(root)), facts.st_size, str(facts.st_mtime_ns), str(path)))
        except OSError as error:
            kind = ArtifactError if os.path.isdir(root) else StorageUnavailable
            raise kind(f"source {self.source!r}: cannot be read: {error.strerror} ({error.filename})") from error
        if not files:
            raise ArtifactError(f"source {self.source!r}: holds no files; allowed: a model's folder")
        return checked_listing(self.source, files)

    def _below(self, folder: Path, above: tuple[Path, ...]) -> Iterator[Path]:
        real = folder.resolve()
        if real in above:
            raise ArtifactError(f"source {self.source!r}: {folder} is a link to a folder that holds it ({real})")
        for path in folder.iterdir():
            if path.name.startswith("."):
                continue
            if path.is_dir():
                yield from self._below(path, (*above, real))
            else:
                yield path

    def fetch(self, download: Download) -> None:
        """Copies what is missing. Raises ArtifactError, OSError."""
        with ThreadPoolExecutor(_FILES_AT_ONCE, "artifact") as pool:
            try:
                for copied in as_completed([pool.submit(_copy, file, download) for file in download.missing]):
                    download.note(copied.result())
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                raise


def _copy(file: RemoteFile, download: Download) -> CachedFile:
    crc = 0
    with download.path(file).open("wb") as copy:
        for piece in _pieces(file):
            copy.write(piece)
            crc = crc64nvme(piece, crc)
            download.came(len(piece))
    return CachedFile(name=file.name, size=file.size, tag=file.tag, crc64nvme=crc, checked_by="CRC64NVME")


def _pieces(file: RemoteFile) -> Iterator[bytes]:
    try:
        with open(file.key, "rb", buffering=0) as source:
            while piece := source.read(PIECE):
                yield piece
            facts = os.fstat(source.fileno())
    except OSError as error:
        raise ArtifactError(f"{file.key}: cannot be read: {error.strerror}") from error
    if (facts.st_size, str(facts.st_mtime_ns)) != (file.size, file.tag):
        raise ArtifactError(f"{file.key}: changed while it was copied; try it again")
