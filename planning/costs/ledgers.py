"""What requests take outside of the engine's steps, read from the gateway's ledger (`gateway.trace_file`).

The ledger's stages `gateway`, `connect` and `engine_http` are all of a request's way to its first byte that is neither lane nor engine core: HTTP,
tokenising, detokenising, and waiting for a processor and for the step that runs (`front.py`).
"""

import json
from dataclasses import dataclass
from pathlib import Path


class LedgerError(ValueError):
    """A ledger file that cannot be read; the message names the file and the line."""


@dataclass(frozen=True, slots=True)
class Around:
    """One request: seconds to its first byte as the gateway saw it, and the part of them that was neither lane nor engine core; and to its end."""

    ttft_s: float
    around_s: float
    wall_s: float


def read_arounds(path: Path) -> list[Around]:
    """The answered requests of a ledger file, in the order in which they ended. Raises LedgerError."""
    found = []
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise LedgerError(f"{path}: cannot be read: {error.strerror}") from error
    for number, row in enumerate(text.splitlines(), 1):
        try:
            entry = json.loads(row)
            stages = entry["stages_s"]
            if entry["outcome"] == "ok" and "prefill" in stages:
                around = stages["gateway"] + stages.get("connect", 0.0) + stages.get("engine_http", 0.0)
                found.append(Around(float(entry["ttft_s"]), around, float(entry["wall_s"])))
        except (ValueError, KeyError, TypeError) as error:
            raise LedgerError(f"{path}: line {number} is none of a ledger: {error!r}") from error
    return found
