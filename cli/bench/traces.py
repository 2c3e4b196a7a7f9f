"""Recorded traffic: when requests arrived and how long they were, read from the trace formats that are in use.

One table, `FORMATS`: a format is known by its first line, and gives one `Row` a line. Files may be gzipped. What a trace holds beyond that
(Mooncake's block hashes, the ledger's stages) is not replayed. Also here: fitting recorded lengths to another model's context.
"""

import csv
import gzip
import io
import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from cli.bench.arrivals import FloatArray
from cli.bench.lengths import IntArray

CONTEXT_MARGIN = 8
"""Tokens kept free in the context: a prompt that is made of text can miss its wanted length by a few."""


class TraceError(ValueError):
    """A trace that cannot be read; the message names the file and what is wrong."""


class Row(NamedTuple):
    """One recorded request."""

    arrived_s: float
    prompt_tokens: int
    output_tokens: int


@dataclass(frozen=True, slots=True)
class Trace:
    """Recorded requests in the order of their arrival, the first at second 0. Lengths are at least 1."""

    arrived_s: FloatArray
    prompt_tokens: IntArray
    output_tokens: IntArray


@dataclass(frozen=True, slots=True)
class Format:
    """A trace format: its name, whether a first line is of it, and how its rows are read."""

    name: str
    recognises: Callable[[str], bool]
    rows: Callable[[Iterable[str]], Iterator[Row]]


def read_trace(path: Path, limit: int | None = None) -> Trace:
    """The trace in `path`, or its first `limit` requests. Raises TraceError."""
    try:
        raw = path.read_bytes()
        text = (gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw).decode()
    except (OSError, EOFError, UnicodeDecodeError) as error:
        raise TraceError(f"{path}: cannot be read: {error}") from error
    first = text.split("\n", 1)[0]
    found = next((known for known in FORMATS if known.recognises(first)), None)
    if found is None:
        raise TraceError(f"{path}: its first line is of no known format; allowed: {', '.join(known.name for known in FORMATS)}")
    try:
        rows = sorted(found.rows(io.StringIO(text)))[:limit]
    except (KeyError, TypeError, ValueError) as error:
        raise TraceError(f"{path}: is not a whole {found.name} trace: {type(error).__name__}: {error}") from error
    if not rows:
        raise TraceError(f"{path}: holds no request")
    return _columns(rows)


def scale_lengths(tokens: IntArray, scale: float) -> IntArray:
    """Lengths times `scale`, rounded down, at least 1."""
    scaled: IntArray = np.maximum(np.floor(tokens * scale), 1).astype(np.int64)
    return scaled


def scale_to_fit(prompt_tokens: IntArray, output_tokens: IntArray, max_model_len: int) -> float:
    """The factor, at most 1, by which all lengths shrink so that the longest request fits the context.

    One factor for all keeps the shape of the distribution, which clipping would not.
    """
    longest = int((prompt_tokens + output_tokens).max())
    return min(1.0, (max_model_len - CONTEXT_MARGIN) / longest)


def _columns(rows: list[Row]) -> Trace:
    arrived, prompt, output = (np.array(column) for column in zip(*rows, strict=True))
    return Trace(
        (arrived - arrived[0]).astype(np.float64),
        np.maximum(prompt, 1).astype(np.int64),
        np.maximum(output, 1).astype(np.int64),
    )


def _azure(lines: Iterable[str]) -> Iterator[Row]:
    for record in csv.DictReader(lines):
        arrived = datetime.fromisoformat(record["TIMESTAMP"])
        arrived_s = (arrived if arrived.tzinfo else arrived.replace(tzinfo=UTC)).timestamp()
        yield Row(arrived_s, int(record["ContextTokens"]), int(record["GeneratedTokens"]))


def _mooncake(lines: Iterable[str]) -> Iterator[Row]:
    for record in _objects(lines):
        yield Row(record["timestamp"] / 1_000, int(record["input_length"]), int(record["output_length"]))


def _ledger(lines: Iterable[str]) -> Iterator[Row]:
    """A request that was refused has no token counts: there is nothing to replay."""
    for record in _objects(lines):
        if record.get("prompt_tokens") and record.get("output_tokens"):
            yield Row(float(record["arrived_s"]), int(record["prompt_tokens"]), int(record["output_tokens"]))


def _objects(lines: Iterable[str]) -> Iterator[dict[str, Any]]:
    return (json.loads(line) for line in lines if line.strip())


def _has_keys(*keys: str) -> Callable[[str], bool]:
    def recognises(first: str) -> bool:
        try:
            record = json.loads(first)
        except ValueError:
            return False
        return isinstance(record, dict) and all(key in record for key in keys)

    return recognises


FORMATS = (
    Format("Azure CSV", lambda first: first.startswith("TIMESTAMP,ContextTokens,GeneratedTokens"), _azure),
    Format("Mooncake JSONL", _has_keys("timestamp", "input_length", "output_length"), _mooncake),
    Format("raylane ledger JSONL", _has_keys("arrived_s", "prompt_tokens", "output_tokens"), _ledger),
)
