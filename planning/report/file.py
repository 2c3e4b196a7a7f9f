"""Where a report goes: looked at before the simulation, written after it in one move."""

import os
from pathlib import Path

from cluster.errors import InputError
from cluster.files import is_special, write_whole


class ReportFileError(InputError):
    """A place where no report can be written; the message names it and says why."""


def check_place(path: Path, option: str = "--report") -> None:
    """Raises ReportFileError where `path`, which `option` named, cannot be written: better before a long run than after
    it."""
    folder = os.path.dirname(os.path.realpath(path))
    if os.path.isdir(path):
        raise ReportFileError(f"{option} {path}: is a folder; name a file in it, such as {path / 'report.html'}")
    if is_special(path):
        raise ReportFileError(
            f"{option} {path}: is not a regular file; allowed: a regular file, or a path that does not exist"
        )
    if not os.path.isdir(folder):
        raise ReportFileError(f"{option} {path}: the folder {folder} does not exist")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise ReportFileError(f"{option} {path}: the folder {folder} is not writable")


def write_report(path: Path, html: str) -> None:
    """A reader sees the old file or the new one, never a part. Raises ReportFileError."""
    try:
        write_whole(path, html)
    except OSError as error:
        raise ReportFileError(f"--report {path}: cannot be written: {error.strerror}") from error
