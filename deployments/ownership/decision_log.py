"""Where decisions are written down (of schedulers, `scheduling/recorder.py`, and of autoscalers): a file that is
rotated at its bound, each new one with a header of its own.

What cannot be written is lost, and nothing else with it: no method raises. Once there is room again the log goes on,
after a header, which holds the whole state and so makes up for what was lost.
"""

import contextlib
import time
from pathlib import Path

from deployments.telemetry.line_log import LogHealth, WholeLines, rotate

MAX_BYTES = 64 << 20
KEPT = 8
RETRY_S = 1.0
"""A log that failed is tried again so often (seconds)."""
_ROOM_BYTES = 256 << 10
"""A log that failed begins again where there is at least so much room, and for two headers: one costs time to make, and
is not made for a full disk."""
_BUFFER_BYTES = 8 << 10


def in_file_name(model: str) -> str:
    """A model's name as a part of a file's: `+`, which none holds (`cluster/spec/models.py`), stands for the slashes.
    No two have the same."""
    return model.replace("/", "+")


def model_in(part: str) -> str:
    """The model that such a part names."""
    return part.replace("+", "/")


class DecisionLog:
    """`name.jsonl` in a folder, and the `KEPT` before it as `name.jsonl.1` and so on; `.1` is the newest of them. No
    other process writes to them.

    `each_line`: a line is in the file as soon as it is written, for those who read it meanwhile.
    """

    def __init__(
        self, folder: Path, name: str, health: LogHealth, max_bytes: int = MAX_BYTES, each_line: bool = False
    ) -> None:
        self._path = folder / f"{name}.jsonl"
        self._health = health
        self._max_bytes = max_bytes
        self._buffer_bytes = 0 if each_line else _BUFFER_BYTES
        self._file: WholeLines | None = None
        self._buffer = bytearray()
        self._buffered = 0
        self._begins = False
        self._closed = False
        self.broken = False
        """Lines were lost: what follows them needs a header."""
        self._retry_s = 0.0
        self._room_bytes = _ROOM_BYTES

    def due(self) -> bool:
        """Whether a header is wanted as the next line: the first one, where the file is full, and where lines were lost
        and there is room again."""
        if self._closed:
            return False
        if self.broken:
            self._begins = time.monotonic() >= self._retry_s and self._has_room()
        else:
            self._begins = self._file is None or self._file.size + len(self._buffer) >= self._max_bytes
        return self._begins

    def write(self, line: str) -> None:
        """Adds a line; nothing once it is closed. `due` must have been asked before."""
        if self._closed:
            return
        data = line.encode("utf-8", "backslashreplace") + b"\n"
        if self._begins:
            self._begins = False
            self._begin(data)
        elif self.broken or self._file is None:
            self._health.lost(1)
        else:
            self._buffer += data
            self._buffered += 1
            if len(self._buffer) > self._buffer_bytes:
                self._flush()

    def lost(self, error: Exception) -> None:
        """A line could not be made: what follows needs a header."""
        self._flush()
        self._fail(1, error)

    def close(self) -> None:
        """Ends the log; what was written is in the file then."""
        self._flush()
        self._closed = True
        self._leave()

    def _begin(self, header: bytes) -> None:
        """Begins a file; or, where lines were lost and the file is not full, goes on in it: each new file costs the
        oldest."""
        self._flush()
        self._room_bytes = max(_ROOM_BYTES, 2 * len(header))
        try:
            file = self._file
            if file is None or file.size >= self._max_bytes or not file.is_at(self._path):
                self._new_file(header)
            else:
                file.add(header)
        except OSError as error:
            self._fail(1, error)
        else:
            self.broken = False
            self._health.well()

    def _new_file(self, header: bytes) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        new = self._path.with_name(f"{self._path.name}.new")
        file = WholeLines(new, fresh=True)  # first of all: where none can be begun, none is lost
        try:
            file.add(header)
            rotate(self._path, KEPT)
            new.replace(self._path)
        except OSError:
            file.close()
            _remove(new)
            raise
        self._leave()
        self._file = file

    def _flush(self) -> None:
        lines, count = bytes(self._buffer), self._buffered
        self._buffer.clear()
        self._buffered = 0
        if not lines or self._file is None:
            return
        try:
            if not self._file.is_at(self._path):
                raise FileNotFoundError(f"{self._path} was removed, or replaced by another")
            self._file.add(lines)
        except OSError as error:
            self._fail(count, error)

    def _fail(self, lines: int, error: Exception) -> None:
        self._health.lost(lines, error)
        self.broken = True
        self._retry_s = time.monotonic() + RETRY_S

    def _has_room(self) -> bool:
        probe = self._path.with_name(f"{self._path.name}.new")
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            file = WholeLines(probe, fresh=True)
            try:
                file.add(b"\0" * self._room_bytes)
            finally:
                file.close()
                _remove(probe)
        except OSError as error:
            self._fail(0, error)
            return False
        return True

    def _leave(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


def _remove(path: Path) -> None:
    with contextlib.suppress(OSError):
        path.unlink(missing_ok=True)
