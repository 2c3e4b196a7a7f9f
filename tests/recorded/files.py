"""Where recordings lie, and how they are read and written: JSON lines, compressed."""

import gzip
import json
from collections.abc import Callable, Iterable, Iterator
from itertools import tee
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent
SCHEDULER, OWNERS, SCALING = "scheduler.jsonl.gz", "owners.jsonl.gz", "scaling.jsonl.gz"
FIGURES = "figures.json"
Again = Callable[[Iterable[dict[str, Any]]], Iterable[dict[str, Any]]]
"""Makes the entries anew from their inputs."""


def recorded(name: str) -> Iterator[dict[str, Any]]:
    """The lines of a recording."""
    with gzip.open(FOLDER / name, "rt") as lines:
        yield from map(json.loads, lines)


def compared(entries: Iterable[dict[str, Any]], again: Again) -> Iterator[dict[str, Any]]:
    """The entries of a recording, each held against what this version makes of it, to the last digit."""
    known, inputs = tee(entries)
    for number, (old, new) in enumerate(zip(known, again(inputs), strict=True), 1):
        assert new == old, f"line {number}"
        yield old


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
