"""A file that gets a line at a time and rotates by size, so that what is forgotten does not fill a disk."""

import logging
from logging.handlers import RotatingFileHandler
from pathlib import Path

_MAX_BYTES = 64 << 20
_KEPT = 5


class LineLog:
    """Appends lines to a file; its folder is made."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        handler = RotatingFileHandler(path, maxBytes=_MAX_BYTES, backupCount=_KEPT, encoding="utf-8")
        handler.setFormatter(logging.Formatter("%(message)s"))
        self._logger = logging.Logger(path.name, logging.INFO)  # not in the global registry: Ray and Serve reconfigure that
        self._logger.addHandler(handler)

    def write(self, line: str) -> None:
        """Appends a line."""
        self._logger.info(line)

    def close(self) -> None:
        """Closes the file."""
        for handler in self._logger.handlers:
            handler.close()
