"""What `raylane deploy` knows of a cell that it applied before: a folder of this machine, below raylane's own state.

`files/` is what was rendered last, and `ray up` runs there; `files/secrets/` holds the secrets where they are files.
`applied.json` says which of it has been applied, step by step, each time in one move: a deployment that is broken off
goes on where it was.
"""

import fcntl
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from cli.run_dir import home
from cluster.files import read_json, write_json, write_whole


class StateError(ValueError):
    """The state folder cannot be used."""


class Applied(BaseModel):
    """What has been applied so far: digests of the cluster's files and of the applications (None: not yet, or a change
    has begun), the files themselves, and the spec of the last deployment that was finished."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    cluster: str | None = None
    applications: str | None = None
    keys: str | None = None
    files: dict[str, str] = Field(default_factory=dict)
    content: dict[str, Any] | None = None


class DeployState:
    """The state of one cell."""

    def __init__(self, cell: str) -> None:
        self.folder = home() / "deployed" / cell
        self.files = self.folder / "files"
        self.secrets = self.files / "secrets"
        self._applied = self.folder / "applied.json"

    @contextmanager
    def lock(self) -> Iterator[bool]:
        """Only one deployment of a cell at a time on this machine. Yields False when another one has it."""
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        with (self.folder / "lock").open("w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                yield False
            else:
                yield True

    def applied(self) -> Applied:
        """Raises StateError."""
        return read_json(self._applied, Applied, StateError) if self._applied.exists() else Applied()

    def record(self, applied: Applied) -> None:
        """Raises OSError."""
        write_json(self._applied, applied)

    def write_files(self, files: Mapping[str, str]) -> None:
        """Makes the folder hold these files, its secrets, and nothing else. Raises OSError."""
        write_files(self.files, files)
        for path in sorted(self.files.rglob("*")):
            name = str(path.relative_to(self.files))
            if path.is_file() and name not in files and not name.startswith("secrets/"):
                path.unlink()


def write_files(folder: Path, files: Mapping[str, str]) -> None:
    """Writes the files that differ, each in one move. Raises OSError."""
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        if not path.is_file() or path.read_bytes() != text.encode():
            write_whole(path, text)
