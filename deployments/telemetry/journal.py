"""What is written of each request: the JSON access log, and (opt-in) the trace file that `raylane bench` and the simulator can replay.

Neither holds any text of a prompt or an answer. Both rotate by size, so that a forgotten gateway does not fill a disk.
"""

import json
import logging
from logging.handlers import RotatingFileHandler
from pathlib import Path

from deployments.telemetry.ledger import Ledger

_MAX_BYTES = 64 << 20
_KEPT = 5


class Journal:
    """Appends one JSON line a request to each file that was asked for."""

    def __init__(self, access_log: Path | None, trace_file: Path | None) -> None:
        self._access = _line_log("raylane.access", access_log)
        self._trace = _line_log("raylane.trace", trace_file)

    def write(self, ledger: Ledger) -> None:
        """Writes a closed ledger."""
        if self._access is None and self._trace is None:
            return
        record = ledger.record()
        if self._trace is not None:
            self._trace.info(json.dumps(record))
        if self._access is not None:
            kept = ("request_id", "arrived_s", "path", "model", "stream", "status", "outcome", "error", "replica", "prompt_tokens", "output_tokens")
            self._access.info(json.dumps({key: record[key] for key in (*kept, "bytes_out", "ttft_s", "wall_s")}))

    def close(self) -> None:
        """Closes the files."""
        for logger in (self._access, self._trace):
            for handler in logger.handlers if logger is not None else ():
                handler.close()


def _line_log(name: str, path: Path | None) -> logging.Logger | None:
    if path is None:
        return None
    path.parent.mkdir(parents=True, exist_ok=True)
    handler = RotatingFileHandler(path, maxBytes=_MAX_BYTES, backupCount=_KEPT, encoding="utf-8")
    handler.setFormatter(logging.Formatter("%(message)s"))
    logger = logging.Logger(name, logging.INFO)  # not in the global registry: Ray and Serve reconfigure that
    logger.addHandler(handler)
    return logger
