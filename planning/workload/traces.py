"""Reads recorded traffic from a file, or draws it by a traffic file; and writes it. Files may be gzipped.

Which format a file is of, its first line says (`formats/`). Whoever takes a trace takes a traffic file too.
"""

import csv
import gzip
import io
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import TextIO

import numpy as np

from planning.workload.formats import FORMATS, Format, Rows
from planning.workload.formats.own import lines_of
from planning.workload.scaling import first_requests
from planning.workload.trace import Trace, TraceError
from planning.workload.traffic import draw, load_traffic
from planning.workload.traffic.file import SUFFIXES

_GZIP = b"\x1f\x8b"


def read_trace(path: Path, limit: int | None = None) -> Trace:
    """The trace in `path`, or its first `limit` requests. Raises TraceError."""
    try:
        with _text(path) as lines:
            rows = _rows(path, lines)
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        raise TraceError(f"{path}: cannot be read: {error}") from error
    if not len(rows):
        raise TraceError(f"{path}: holds no request")
    try:
        trace = rows.trace()
    except ValueError as error:
        raise TraceError(f"{path}: {error}") from error
    return trace if limit is None else trace.take(np.arange(min(limit, len(trace))))


def write_trace(path: Path, trace: Trace) -> None:
    """Writes raylane's own trace format, gzipped where the name ends with .gz. Raises OSError."""
    if path.suffix == ".gz":
        with gzip.open(path, "wt", encoding="utf-8", compresslevel=6) as packed:
            packed.writelines(lines_of(trace))
    else:
        with path.open("w", encoding="utf-8") as plain:
            plain.writelines(lines_of(trace))


@contextmanager
def _text(path: Path) -> Iterator[TextIO]:
    with path.open("rb") as raw:
        packed = raw.read(2) == _GZIP
        raw.seek(0)
        with io.TextIOWrapper(gzip.GzipFile(fileobj=raw) if packed else raw, encoding="utf-8", newline="") as text:
            yield text


def _rows(path: Path, lines: TextIO) -> Rows:
    first = lines.readline()
    found = next((known for known in FORMATS if known.recognises(first)), None)
    if found is None:
        raise TraceError(
            f"{path}: its first line is of no known format; allowed: {', '.join(known.name for known in FORMATS)}"
        )
    return _read(path, found, chain([first], lines))


def _read(path: Path, known: Format, lines: Iterator[str]) -> Rows:
    rows = Rows()
    try:
        known.read(lines, rows)
    except UnicodeDecodeError:
        raise
    except (KeyError, TypeError, ValueError, OverflowError, AttributeError, csv.Error) as error:
        place = f"after {len(rows)} requests: " if len(rows) else ""
        raise TraceError(
            f"{path}: is not a whole {known.name} trace: {place}{type(error).__name__}: {error}"
        ) from error
    return rows


def read_requests(path: Path, limit: int | None = None, seed: int | None = None) -> Trace:
    """The requests of a traffic file (.yaml, .yml; drawn by its own seed unless another is given) or of a trace
    (anything else); the first `limit` of them. Raises TraceError."""
    if path.suffix not in SUFFIXES:
        return read_trace(path, limit)
    drawn = draw(load_traffic(path), seed)
    return drawn if limit is None else first_requests(drawn, limit)
