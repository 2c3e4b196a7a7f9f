"""Where recordings lie, and how they are read and written: JSON lines, compressed."""

import gzip
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent
SCHEDULER, OWNERS, SCALING = "scheduler.jsonl.gz", "owners.jsonl.gz", "scaling.jsonl.gz"
FIGURES = "figures.json"


def recorded(name: str) -> Iterator[dict[str, Any]]:
    """The lines of a recording."""
    with gzip.open(FOLDER / name, "rt") as lines:
        yield from map(json.loads, lines)


def write(path: Path, lines: Iterable[dict[str, Any]]) -> int:
    """Writes a recording, without the time of day. Returns how many lines."""
    with (
        path.open("wb") as file,
        gzip.GzipFile(filename="", fileobj=file, mode="wb", compresslevel=9, mtime=0) as packed,
    ):
        return sum(
            packed.write(json.dumps(line, separators=(",", ":"), allow_nan=False).encode() + b"\n") > 0
            for line in lines
        )
