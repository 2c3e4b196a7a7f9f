"""What is written of each request: the JSON access log, and (opt-in) the trace file that `raylane bench` and the simulator can replay.

Neither holds any text of a prompt or an answer. Both rotate by size, so that a forgotten gateway does not fill a disk.
"""

import json
from pathlib import Path

from deployments.telemetry.ledger import Ledger
from deployments.telemetry.line_log import LineLog
from deployments.telemetry.log_health import Logs


class Journal:
    """Appends one JSON line a request to each file that was asked for."""

    def __init__(self, access_log: Path | None, trace_file: Path | None, logs: Logs) -> None:
        self._access = LineLog(access_log, logs.named("access")) if access_log is not None else None
        self._trace = LineLog(trace_file, logs.named("trace")) if trace_file is not None else None

    def write(self, ledger: Ledger) -> None:
        """Writes a closed ledger."""
        if self._access is None and self._trace is None:
            return
        record = ledger.record()
        if self._trace is not None:
            self._trace.write(json.dumps(record))
        if self._access is not None:
            kept = ("request_id", "arrived_s", "path", "model", "stream", "status", "outcome", "error", "replica", "digest")
            self._access.write(json.dumps({key: record[key] for key in (*kept, "prompt_tokens", "output_tokens", "bytes_out", "ttft_s", "wall_s")}))

    def close(self) -> None:
        """Closes the files."""
        for log in (self._access, self._trace):
            if log is not None:
                log.close()
