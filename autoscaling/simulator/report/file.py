"""Where a report goes: looked at before the simulation, written after it in one move."""

import os
import tempfile
from pathlib import Path


class ReportFileError(ValueError):
    """A place where no report can be written; the message names it and says why."""


def check_place(path: Path, option: str = "--report") -> None:
    """Raises ReportFileError where `path`, which `option` named, cannot be written: better before a long run than after it."""
    folder = path.absolute().parent
    if path.is_dir():
        raise ReportFileError(f"{option} {path}: is a folder; name a file in it, such as {path / 'report.html'}")
    if not folder.is_dir():
        raise ReportFileError(f"{option} {path}: the folder {folder} does not exist")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise ReportFileError(f"{option} {path}: the folder {folder} is not writable")


def write_report(path: Path, html: str) -> None:
    """A reader sees the old file or the new one, never a part. Raises ReportFileError."""
    draft = None
    try:
        with tempfile.NamedTemporaryFile("w", encoding="utf-8", dir=path.absolute().parent, prefix=f".{path.name}.", delete=False) as file:
            draft = Path(file.name)
            file.write(html)
        draft.chmod(0o666 & ~_umask())
        draft.replace(path)
    except OSError as error:
        if draft is not None:
            draft.unlink(missing_ok=True)
        raise ReportFileError(f"--report {path}: cannot be written: {error.strerror}") from error


def _umask() -> int:
    current = os.umask(0o022)
    os.umask(current)
    return current
