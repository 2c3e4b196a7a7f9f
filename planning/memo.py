"""Results that are stored, so that a later call need not find them again: JSON lines, one result each, in a file that
several processes add to. Keys hold a hash of the code that a result depends on.
"""

import hashlib
import json
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from deployments.telemetry.line_log import WholeLines

ResultT = TypeVar("ResultT")


class Memo:
    """Results by key. Without a `path` they last as long as this process."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._known: dict[str, Any] = {} if path is None or not path.exists() else dict(_rows(path))

    def get_as(self, kind: type[ResultT], key: str) -> ResultT | None:
        """The result as that dataclass; None where there is none, or something else."""
        try:
            return TypeAdapter(kind).validate_json(json.dumps(self._known.get(key)))
        except ValidationError:
            return None

    def put(self, key: str, about: dict[str, Any], result: Any) -> None:
        """Stores a result (plain JSON values); `about` describes it to a reader. After a failed write (a full disk) the
        file is left alone, and the results last as long as this process."""
        self._known[key] = result
        if self._path is None:
            return
        line = json.dumps({"key": key, **about, "result": result}, separators=(",", ":")).encode() + b"\n"
        try:
            file = WholeLines(self._path)
            try:
                file.add(line)
            finally:
                file.close()
        except OSError:
            self._path = None


def _rows(path: Path) -> Iterator[tuple[str, Any]]:
    with path.open("rb") as file:
        for line in file:
            try:
                row = json.loads(line)
                yield row["key"], row["result"]
            except (ValueError, KeyError, TypeError, RecursionError):
                continue  # cut off by a crash, or of another format


def key_of(*parts: object) -> str:
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()[:24]


_ROOT = Path(__file__).parents[1]
_SIMULATOR = (
    "deployments/engine_model",
    "deployments/scheduling",
    "planning/simulator",
    "planning/workload",
    "planning/capacity",
)


@lru_cache
def simulator_hash() -> str:
    """Of the code of the simulator, and of what finds a rate with it."""
    digest = hashlib.sha256()
    for place in _SIMULATOR:
        for file in sorted((_ROOT / place).rglob("*.py")):
            digest.update(file.name.encode() + b"\0" + file.read_bytes() + b"\0")
    return digest.hexdigest()[:12]
