"""Reads recorded traffic from a file, or draws it by a traffic file; and writes it. Files may be gzipped.

Which format a file is of, its first line says (`formats/`). Whoever takes a trace takes a traffic file too. An error
says where in the file it is, what was found there, and what was expected.
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

from planning.workload.formats import FORMATS, Format, Rows
from planning.workload.formats.format import LineError, shown
from planning.workload.formats.own import lines_of
from planning.workload.scaling import first_requests
from planning.workload.trace import Trace, TraceError
from planning.workload.traffic.draw import draw
from planning.workload.traffic.file import SUFFIXES, load_traffic

_GZIP = b"\x1f\x8b"
_BINARY = {
    b"PAR1": "a Parquet file",
    b"ARROW1": "an Arrow file",
    b"PK\x03\x04": "a zip archive (or a spreadsheet)",
    b"\x28\xb5\x2f\xfd": "packed by zstd",
    b"BZh": "packed by bzip2",
    b"\xfd7zXZ": "packed by xz",
    b"SQLite": "a SQLite database",
    _GZIP: "packed twice by gzip",
}
"""What files begin with that are no text."""
_KNOWN = ", ".join(f"{known.name} ({known.begins})" for known in FORMATS)
_DELIMITERS = {";": "semicolons", "\t": "tabs", "|": "bars"}


def read_trace(path: Path, limit: int | None = None) -> Trace:
    """The trace in `path`, or its first `limit` requests. Raises TraceError."""
    try:
        with _text(path) as text:
            rows = _rows(path, _Lines(path, text))
    except OSError as error:
        raise TraceError(f"{path}: cannot be read: {error.strerror or error}") from error
    if not len(rows):
        left_out = "".join(f"; {change}" for change in rows.changes())
        raise TraceError(f"{path}: holds no request; expected at least one after its first line{left_out}")
    trace = rows.trace()
    return trace if limit is None else first_requests(trace, limit)


def write_trace(path: Path, trace: Trace) -> None:
    """Writes raylane's own trace format, gzipped where the name ends with .gz. Raises OSError."""
    with gzip.open(path, "wb", compresslevel=6) if path.suffix == ".gz" else path.open("wb") as file:
        file.writelines(lines_of(trace))


class _Lines:
    """The lines of a file; `number` is that of the line that was read last, from 1. Raises TraceError where the file
    breaks off, or is no text."""

    def __init__(self, path: Path, text: TextIO) -> None:
        self.number = 0
        self._path = path
        self._text = text

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        try:
            line = self._text.readline()
        except EOFError as error:
            raise self._broken("the file is cut off: its gzip stream does not end", "a whole file") from error
        except (zlib.error, gzip.BadGzipFile) as error:
            raise self._broken(f"its gzip stream is damaged ({error})", "a whole file") from error
        except UnicodeDecodeError as error:
            found = f"bytes that are no UTF-8 text ({error.object[error.start : error.start + 4]!r})"
            raise self._broken(found, "CSV or JSON lines in UTF-8") from error
        if not line:
            raise StopIteration
        self.number += 1
        return line

    def _broken(self, found: str, expected: str) -> TraceError:
        return TraceError(f"{self._path}: after line {self.number}: {found}; expected {expected}")


@contextmanager
def _text(path: Path) -> Iterator[TextIO]:
    with path.open("rb") as raw:
        packed = raw.peek(2)[:2] == _GZIP
        stream = gzip.GzipFile(fileobj=raw) if packed else raw
        _check_text(path, stream)
        with io.TextIOWrapper(stream, encoding="utf-8-sig", newline="") as text:
            yield text


def _check_text(path: Path, stream: gzip.GzipFile | io.BufferedReader) -> None:
    """Raises TraceError for an empty file, and for one of a kind that is no text."""
    try:
        begin = stream.peek(8)[:8]
    except EOFError as error:
        raise TraceError(f"{path}: is cut off: its gzip stream does not end; expected a whole file") from error
    except (zlib.error, gzip.BadGzipFile) as error:
        raise TraceError(f"{path}: its gzip stream is damaged ({error}); expected a whole file") from error
    if not begin:
        raise TraceError(f"{path}: is empty; expected a trace: {_KNOWN}")
    found = next((what for magic, what in _BINARY.items() if begin.startswith(magic)), None)
    if found is not None:
        raise TraceError(f"{path}: is {found}; expected text, plain or packed by gzip: {_KNOWN}")


def _rows(path: Path, lines: _Lines) -> Rows:
    first = next(lines, "")
    found = next((known for known in FORMATS if known.recognises(first)), None)
    if found is None:
        line = shown(first.rstrip("\r\n"))
        raise TraceError(f"{path}: line 1: {line} begins no known format{_hint(first)}; expected one of: {_KNOWN}")
    return _read(path, found, lines, first)


def _hint(first: str) -> str:
    """What a first line nearly is."""
    for delimiter, name in _DELIMITERS.items():
        for known in FORMATS:
            if delimiter in first and known.recognises(first.replace(delimiter, ",")):
                return f", but that of {known.name} with {name} instead of commas"
    if first.lstrip().startswith("["):
        return " (a JSON array instead of a JSON object a line?)"
    return ""


def _read(path: Path, known: Format, lines: _Lines, first: str) -> Rows:
    rows = Rows()
    try:
        known.read(chain([first], lines), rows)
    except (LineError, csv.Error) as error:
        raise TraceError(f"{path}: line {lines.number} of a {known.name} trace: {error}") from error
    return rows


def read_requests(path: Path, limit: int | None = None, seed: int | None = None) -> Trace:
    """The requests of a traffic file (.yaml, .yml; drawn by its own seed unless another is given) or of a trace
    (anything else); the first `limit` of them. Raises TraceError."""
    if path.suffix not in SUFFIXES:
        return read_trace(path, limit)
    drawn = draw(load_traffic(path), seed)
    return drawn if limit is None else first_requests(drawn, limit)
