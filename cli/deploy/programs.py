"""The programs that a deployment runs: Ray's launcher, ssh and rsync."""

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from cli.deploy.serve_api import DeployError

_WORDS_CHARS = 500
_LINES = 15


def tool(name: str) -> str:
    """A program of this virtual environment."""
    return str(Path(sys.executable).parent / name)


def run(command: Sequence[str], folder: Path, log: Path | None = None) -> None:
    """Shows what the command prints, or writes it to a file. Raises DeployError."""
    try:
        with contextlib.nullcontext() if log is None else log.open("wb") as output:
            environment = {**os.environ, "RAY_USAGE_STATS_ENABLED": "0"}
            status = subprocess.run(
                command,
                cwd=folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                check=False,
            ).returncode
    except OSError as error:
        raise DeployError(f"{command[0]}: cannot be run: {error.strerror}") from error
    if status:
        lines = [] if log is None else log.read_text(errors="replace").splitlines()[-_LINES:]
        where = "what it printed is above" if log is None else f"the end of {log}:\n  " + "\n  ".join(lines)
        raise DeployError(f"{' '.join(command[:2])} ended with status {status}; {where}")


class Background:
    """A command that runs, and a file of what it says of errors."""

    def __init__(self, process: subprocess.Popen[bytes], errors: IO[bytes]) -> None:
        self._process, self._errors = process, errors

    def ended(self) -> bool:
        return self._process.poll() is not None

    def said(self) -> str:
        """Its last words; empty: none."""
        self._errors.seek(0)
        return " ".join(self._errors.read().decode(errors="replace").split())[-_WORDS_CHARS:]


@contextmanager
def background(command: Sequence[str], folder: Path) -> Iterator[Background]:
    """Runs a command with all that it starts as long as the block."""
    with tempfile.TemporaryFile() as errors:
        try:
            process = subprocess.Popen(
                command,
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=errors,
                start_new_session=True,
            )
        except OSError as error:
            raise DeployError(f"{command[0]}: cannot be run: {error.strerror}") from error
        try:
            yield Background(process, errors)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)
            process.wait()
