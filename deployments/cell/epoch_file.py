"""The highest epochs that a directory has issued or heard of, kept so that the next one issues none of them again."""

import json
import logging
import os
from collections.abc import Mapping
from pathlib import Path

log = logging.getLogger("raylane.ownership")

FILE_NAME = "epochs.json"


class EpochFile:
    """`path`: the file; None: nothing is kept (a test's directory)."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._written: dict[str, int] = {}

    def read(self) -> dict[str, int]:
        """The highest epoch of each model; nothing where there is no file. One that cannot be read is logged and left
        out: what gateways and replicas have seen stands in for it."""
        if self._path is None or not self._path.exists():
            return {}
        try:
            self._written = _checked(json.loads(self._path.read_text(encoding="utf-8")))
        except (OSError, ValueError) as error:
            log.error("%s cannot be read, epochs are learned from gateways and replicas: %s", self._path, error)
        return dict(self._written)

    def write(self, epochs: Mapping[str, int]) -> None:
        """Keeps them, on the disk when it returns; the same as before are not written again. A failure is logged:
        ownership must move on a full disk too, and the next write tries again."""
        if self._path is None or epochs == self._written:
            return
        new = self._path.with_name(f"{self._path.name}.new")
        try:
            with new.open("w", encoding="utf-8") as file:
                json.dump(dict(epochs), file)
                file.flush()
                os.fsync(file.fileno())
            new.replace(self._path)
        except OSError as error:
            log.error(
                "%s cannot be written, a directory that restarts learns epochs from gateways and replicas: %s",
                self._path,
                error,
            )
        else:
            self._written = dict(epochs)


def _checked(content: object) -> dict[str, int]:
    if not isinstance(content, dict) or not all(type(epoch) is int and epoch >= 0 for epoch in content.values()):
        raise ValueError(f"not a map of models to epochs (whole numbers, at least 0): {str(content)[:200]}")
    return content
