"""Where decisions are written down (of schedulers, `scheduling/recorder.py`, and of autoscalers): a file that is rotated at its bound, each new one
with a header of its own."""

from pathlib import Path
from typing import TextIO

MOST_BYTES = 64 << 20
KEPT = 8


def in_file_name(model: str) -> str:
    """A model's name as a part of a file's: `+`, which none holds (`cluster/spec/models.py`), stands for the slashes. No two have the same."""
    return model.replace("/", "+")


def model_in(part: str) -> str:
    """The model that such a part names."""
    return part.replace("+", "/")


class DecisionLog:
    """`name.jsonl` in a folder, and the `KEPT` before it as `name.jsonl.1` and so on; `.1` is the newest of them.

    `each_line`: a line is in the file as soon as it is written, for those who read it meanwhile.
    """

    def __init__(self, folder: Path, name: str, most_bytes: int = MOST_BYTES, each_line: bool = False) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._path = folder / f"{name}.jsonl"
        self._most_bytes = most_bytes
        self._buffering = 1 if each_line else -1
        self._file: TextIO | None = None
        self._bytes = 0
        self._closed = False

    def due(self) -> bool:
        """Whether a new file begins now: the first one, or where the last is full. It is open then, and wants a header.

        Raises OSError; where no file can be opened, those that there are stay as they are. The next call tries again.
        """
        if self._closed or (self._file is not None and self._bytes < self._most_bytes):
            return False
        new = self._path.with_name(f"{self._path.name}.new")
        file = new.open("w", buffering=self._buffering, encoding="utf-8")  # first of all: where none can be opened, none is lost
        try:
            if self._file is not None:
                self._file.close()
            self._rotate()
            new.replace(self._path)
        except OSError:
            file.close()
            new.unlink(missing_ok=True)
            raise
        self._file, self._bytes = file, 0
        return True

    def write(self, line: str) -> None:
        """Adds a line; nothing once it is closed. `due` must have been asked before."""
        if self._file is not None:
            self._bytes += self._file.write(line + "\n")

    def close(self) -> None:
        """Ends the log; what was written is on the disk then."""
        self._closed = True
        if self._file is not None:
            self._file.close()
            self._file = None

    def _rotate(self) -> None:
        for number in range(KEPT, 0, -1):
            older = self._path.with_name(f"{self._path.name}.{number}")
            newer = self._path if number == 1 else self._path.with_name(f"{self._path.name}.{number - 1}")
            if newer.exists():
                newer.replace(older)
