"""The audit: every act of an operator, a line each, in a file that is only ever appended to. The directory writes it, and reads it at its start."""

import logging
from pathlib import Path

from deployments.cell.act import Act, read_act
from deployments.telemetry.whole_lines import WholeLines

log = logging.getLogger("raylane.controls")

FILE_NAME = "controls.jsonl"


class Audit:
    """`path`: the file; None: nothing is kept (a test's directory). What is written is on the disk when `write` returns."""

    def __init__(self, path: Path | None) -> None:
        self._path = path

    def read(self) -> list[Act]:
        """All acts, in order. A line that is none (a write that was cut short) is left out, and logged; so are all where the file cannot be read."""
        if self._path is None:
            return []
        try:
            text = self._path.read_text(encoding="utf-8", errors="replace")
        except FileNotFoundError:
            return []
        except OSError as error:  # without a directory nothing is served
            log.error("what operators had ordered is not in force, since it cannot be read: %s", error)
            return []
        acts = []
        for number, line in enumerate(text.splitlines(), 1):
            try:
                acts.append(read_act(line))
            except ValueError as error:
                log.warning("%s, line %d: %s", self._path, number, error)
        return acts

    def write(self, act: Act) -> None:
        """Appends an act. Raises OSError; the act is not in the file then, unless the disk refuses to take it out again."""
        if self._path is None:
            return
        file = WholeLines(self._path)
        try:
            file.add(act.line().encode() + b"\n", on_disk=True)
        finally:
            file.close()
