"""Places for what a command writes at its end: looked at before its work begins."""

from pathlib import Path

from cli.console import fail
from planning.report.file import ReportFileError, check_place


def check_outputs(**places: Path | None) -> None:
    """Ends the command where a file cannot be written; each by the name of its option, None where none was asked for."""
    for name, place in places.items():
        if place is not None:
            try:
                check_place(place, f"--{name}")
            except ReportFileError as error:
                fail(str(error), code=2)
