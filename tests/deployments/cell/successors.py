"""Directories and stores of a cell, one after the other."""

from pathlib import Path
from typing import Any

from deployments.cell.directory import Directory
from deployments.store import FILE_NAME, CellStore

_open: dict[Path, CellStore] = {}


def _ended(path: Path) -> None:
    before = _open.pop(path, None)
    if before is not None:
        before.close()


def next_store(run_dir: Path | None) -> CellStore:
    """What the next directory of the cell opens; the one before it has ended."""
    if run_dir is None:
        return CellStore(None)
    path = run_dir / FILE_NAME
    _ended(path)
    store = _open[path] = CellStore(path)
    return store


def next_directory(run_dir: Path, secret: str = "secret", **options: Any) -> Directory:
    """The next directory of the cell with that run directory; the one before it has ended."""
    _ended(run_dir / FILE_NAME)
    directory = Directory(secret, run_dir=str(run_dir), **options)
    _open[run_dir / FILE_NAME] = directory.store
    return directory
