"""The files of an entry that is not whole yet: which of them are, and how many bytes have come.

A file counts as whole once it is noted in the manifest beside the files, with the checksum that it had then. A pull
that was killed leaves whole files, which the next one keeps, and pieces, which it removes.
"""

import threading
import time
from collections.abc import Sequence
from pathlib import Path

from cluster.artifacts.manifest import CachedFile, Manifest, RemoteFile, boot_id, problem_of, version_of
from cluster.artifacts.sources import ArtifactError
from cluster.fetch_progress import FetchStep, ProgressReport
from cluster.files import read_json, write_json

_REPORT_S = 0.2
_OF_THE_HUB = ".cache/"
"""Below this, huggingface_hub keeps the pieces of files from which it goes on."""


class Download:
    """A download of `files` into `partial`, of which nobody else has the lock. `folder`: where they go; `missing`: what
    has to come; `manifest`: what is whole."""

    def __init__(self, partial: Path, source: str, files: Sequence[RemoteFile], report: ProgressReport) -> None:
        self.folder = partial / "files"
        self._notes = partial / "manifest.json"
        self._report, self._lock, self._reported_at = report, threading.Lock(), 0.0
        self._remove_others(files)
        kept = self._whole(files)
        names = {file.name for file in kept}
        self.missing = tuple(file for file in files if file.name not in names)
        self.manifest = Manifest(source=source, version=version_of(files), files=kept, boot_id=boot_id())
        self._total = sum(file.size for file in files)
        self._there = self.manifest.size
        self.came(0)

    def _remove_others(self, files: Sequence[RemoteFile]) -> None:
        """An engine loads whatever weights it finds, and a link would be read in a file's place."""
        names = {file.name for file in files}
        for path in self.folder.rglob("*"):
            name = str(path.relative_to(self.folder))
            if path.is_symlink() or (path.is_file() and name not in names and not name.startswith(_OF_THE_HUB)):
                path.unlink()

    def _whole(self, files: Sequence[RemoteFile]) -> tuple[CachedFile, ...]:
        try:
            noted = read_json(self._notes, Manifest, ArtifactError).files
        except ArtifactError:  # there are none, or somebody has changed them
            return ()
        expected = {(file.name, file.size, file.tag) for file in files}
        return tuple(
            file
            for file in noted
            if (file.name, file.size, file.tag) in expected and problem_of(file, self.folder, read=True) is None
        )

    def path(self, file: RemoteFile) -> Path:
        """Where it goes. Raises OSError."""
        path = self.folder / file.name
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    def came(self, size: int) -> None:
        """Counts bytes that have come; a negative number where they have to come again. Thread-safe."""
        with self._lock:
            self._there += size
            now = time.monotonic()
            if self._there == self._total or now - self._reported_at > _REPORT_S:
                self._reported_at = now
                self._report(FetchStep.FETCHING, self._there, self._total)

    def note(self, file: CachedFile) -> None:
        """Notes that it is whole. Raises OSError."""
        self.manifest = self.manifest.model_copy(update={"files": (*self.manifest.files, file)})
        write_json(self._notes, self.manifest)
