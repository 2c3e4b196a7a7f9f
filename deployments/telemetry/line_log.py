"""A file that gets a line at a time and rotates by size, so that what is forgotten does not fill a disk."""

from pathlib import Path

from deployments.telemetry.log_health import LogHealth
from deployments.telemetry.whole_lines import WholeLines, rotate

MOST_BYTES = 64 << 20
KEPT = 5


class LineLog:
    """Appends lines to a file; its folder is made. Several processes may append to one file.

    Nothing raises: a line that cannot be written is lost and counted by `health`, and the next one is tried again.
    """

    def __init__(self, path: Path, health: LogHealth) -> None:
        self._path = path
        self._health = health
        self._file: WholeLines | None = None
        self._closed = False

    def write(self, line: str) -> bool:
        """Appends a line; nothing once it is closed. Whether it was written."""
        if self._closed:
            return False
        try:
            data = line.encode("utf-8", "backslashreplace") + b"\n"
            self._open(len(data)).add(data)
        except OSError as error:
            self._health.lost(1, error)
            return False
        self._health.well()
        return True

    def close(self) -> None:
        """Closes the file."""
        self._closed = True
        self._leave()

    def _open(self, more: int) -> WholeLines:
        """The file of that name, which may be another one than before: it was rotated by another process, or removed."""
        if self._file is not None and self._file.is_at(self._path):
            if not self._file.size or self._file.size + more <= MOST_BYTES:
                return self._file
            rotate(self._path, KEPT)
        self._leave()
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._file = WholeLines(self._path)
        return self._file

    def _leave(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None
