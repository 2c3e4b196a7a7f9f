"""A folder, perhaps of a network file system, as the origin of files: copied as anything else is fetched."""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from cluster.artifacts.extents import crc_from
from cluster.artifacts.manifest import CachedFile, RemoteFile, checked_listing
from cluster.artifacts.progress import ProgressReport
from cluster.artifacts.ranged import Checked, RangedDownload, Read, Transfer
from cluster.artifacts.sources import ArtifactError


class FolderOrigin:
    """The files below `source`, an absolute path. A file's tag is its size and its time of change."""

    def __init__(self, source: str, part_bytes: int, connections: int) -> None:
        self.source = source
        self._transfer = Transfer(self._opened, self._checked, part_bytes, connections)

    def listing(self) -> tuple[RemoteFile, ...]:
        """All files below, without hidden ones. Raises ArtifactError."""
        root = Path(self.source)
        try:
            paths = [path for path in sorted(root.rglob("*")) if path.is_file() and not _is_hidden(path, root)]
            found = [(path, path.stat()) for path in paths]
        except OSError as error:
            raise ArtifactError(
                f"source {self.source!r}: cannot be read: {error.strerror} ({error.filename})"
            ) from error
        files = [
            RemoteFile(str(path.relative_to(root)), facts.st_size, f"{facts.st_mtime_ns}", str(path))
            for path, facts in found
        ]
        return checked_listing(self.source, files)

    def fetch(self, files: Sequence[RemoteFile], partial: Path, report: ProgressReport) -> tuple[CachedFile, ...]:
        """Copies them. Raises ArtifactError, OSError."""
        return RangedDownload(files, partial, self._transfer, report).run()

    @contextmanager
    def _opened(self, file: RemoteFile, start: int, end: int) -> Iterator[Read]:
        try:
            with open(file.key, "rb", buffering=0) as opened:
                if str(os.fstat(opened.fileno()).st_mtime_ns) != file.tag:
                    raise ArtifactError(f"{file.key}: changed while it was copied; try it again")
                opened.seek(start)
                yield lambda size: opened.read(size) or b""
        except OSError as error:
            if error.filename != file.key:  # of the disk that is written to
                raise
            raise ArtifactError(f"{file.key}: cannot be read: {error.strerror}") from error

    @staticmethod
    def _checked(file: RemoteFile, path: Path, crc: int) -> Checked:
        """A second reading of the folder would say no more than the first; the copy itself is read."""
        with path.open("rb", buffering=0) as opened:
            sound = crc_from(opened.fileno(), 0, file.size) == crc
        return Checked("CRC-64/NVME", () if sound else ((0, file.size),))


def _is_hidden(path: Path, root: Path) -> bool:
    return any(part.startswith(".") for part in path.relative_to(root).parts)
