"""What was run before: JSON lines, a result a line, so that a gauntlet that was broken off goes on where it was.

Several processes write to one file: each line is appended whole, under a lock. A line that was cut off by a crash is ended by the next writer, and
passed over.
"""

import fcntl
import hashlib
import json
import os
from pathlib import Path
from typing import Any, BinaryIO


class Memo:
    """Results by key. `path` None: this process's own, kept nowhere. `trouble`: why nothing is written to the file any more, None where all is
    well."""

    def __init__(self, path: Path | None) -> None:
        self.trouble: str | None = None
        self._path = path
        self._known: dict[str, Any] = {}
        self._read = 0
        self.refresh()

    def refresh(self) -> None:
        """Takes in what others have written."""
        if self._path is None or not self._path.exists():
            return
        with self._path.open("rb") as file:
            file.seek(self._read)
            for line in file:
                if not line.endswith(b"\n"):
                    break
                self._read += len(line)
                try:
                    row = json.loads(line)
                    self._known[row["key"]] = row["result"]
                except (ValueError, KeyError, TypeError, RecursionError):
                    continue

    def get(self, key: str) -> Any | None:
        """The result of that key, None where there is none."""
        return self._known.get(key)

    def put(self, key: str, about: dict[str, Any], result: Any) -> None:
        """Keeps a result (plain JSON values); `about` tells a reader what it is of. A file that takes no more (a full disk) is let be from
        then on: what is run goes on."""
        self._known[key] = result
        if self._path is None or self.trouble is not None:
            return
        line = json.dumps({"key": key, **about, "result": result}, separators=(",", ":")).encode() + b"\n"
        try:
            with self._path.open("ab+") as file:
                fcntl.flock(file, fcntl.LOCK_EX)
                file.write(line if _ended(file) else b"\n" + line)
        except OSError as error:
            self.trouble = f"{self._path}: cannot be written: {error.strerror}; results are not remembered any more"


def _ended(file: BinaryIO) -> bool:
    """Whether the file's last line is whole. Appending goes on at the end, wherever it was read."""
    if not file.seek(0, os.SEEK_END):
        return True
    file.seek(-1, os.SEEK_END)
    return file.read(1) == b"\n"


def key_of(*parts: object) -> str:
    """One key of all that a result depends on."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()[:24]
