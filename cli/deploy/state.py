"""The folder of this machine in which `raylane deploy` works on a cell, below raylane's own state: `files/` is what was
rendered last, where `ray up` runs; `files/secrets/` holds the secrets where they are files. What has been applied is
recorded where all operators see it (`record.py`).
"""

from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path

from cli.run_dir import home, locked
from cluster.files import write_whole


class DeployState:
    """The folder of one cell."""

    def __init__(self, cell: str) -> None:
        self.folder = home() / "deployed" / cell
        self.files = self.folder / "files"
        self.secrets = self.files / "secrets"

    def lock(self) -> AbstractContextManager[bool]:
        """Only one deployment of a cell at a time on this machine. Yields False when another one has it."""
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        return locked(self.folder / "lock")

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
