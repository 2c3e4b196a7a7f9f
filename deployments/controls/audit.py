"""The audit: every act of an operator, a line each, in a file that is only ever appended to. The directory writes it, and reads it at its start."""

import logging
import os
from pathlib import Path
from typing import BinaryIO

from deployments.controls.act import Act, read_act

log = logging.getLogger("raylane.controls")

FILE_NAME = "controls.jsonl"


class Audit:
    """`path`: the file; None: nothing is kept (a test's directory). What is written is on the disk when `write` returns."""

    def __init__(self, path: Path | None) -> None:
        self._path = path

    def read(self) -> list[Act]:
        """All acts, in order. A line that is none (a write that was cut short) is left out, and logged."""
        if self._path is None or not self._path.exists():
            return []
        acts = []
        for number, line in enumerate(self._path.read_text(encoding="utf-8", errors="replace").splitlines(), 1):
            try:
                acts.append(read_act(line))
            except ValueError as error:
                log.warning("%s, line %d: %s", self._path, number, error)
        return acts

    def write(self, act: Act) -> None:
        """Appends an act. Raises OSError."""
        if self._path is None:
            return
        with self._path.open("ab+") as file:
            if _is_cut_short(file):
                file.write(b"\n")
            file.write(act.line().encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())


def _is_cut_short(file: BinaryIO) -> bool:
    """Whether the last line has no end: a write that did not come to its own."""
    if not file.tell():
        return False
    file.seek(-1, os.SEEK_END)
    return file.read(1) != b"\n"
