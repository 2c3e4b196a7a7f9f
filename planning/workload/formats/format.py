"""The contract of a trace format, and what readers share.

A new format is one file, one line in `__init__.py`, where the conformance test finds it, and a sample in
`tests/planning/workload/samples.py`.
"""

import csv
import sys
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, TypeVar

import msgspec
import numpy as np
from msgspec import Meta

from planning.workload.changes import ChangeKind, TraceChange
from planning.workload.lengths import MAX_TOKENS
from planning.workload.trace import LABELS, Labels, Prefixes, Trace

_SHOWN = 60


Tokens = Annotated[int, Meta(ge=0, le=MAX_TOKENS)]
Seconds = Annotated[float, Meta(ge=0, le=sys.float_info.max)]
Hash = Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]
_Record = TypeVar("_Record", bound=msgspec.Struct)


class LineError(ValueError):
    """A line that is not of the format: what was found there, and what was expected."""


def shown(value: object) -> str:
    """A value in a message: short."""
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def json_records(lines: Iterable[str], kind: type[_Record]) -> Iterator[_Record]:
    """The JSON objects of the lines that are not empty. Raises LineError."""
    decoder = msgspec.json.Decoder(kind)
    for line in filter(str.strip, lines):
        try:
            yield decoder.decode(line)
        except (msgspec.DecodeError, RecursionError) as error:
            raise LineError(f"{shown(line.strip())}: {error}") from error


def csv_records(lines: Iterable[str], kind: type[_Record]) -> Iterator[_Record]:
    """The rows below the first one, which names the columns, that have something in them. Raises LineError."""
    rows = csv.reader(lines)
    columns = next(rows)
    for row in filter(None, rows):
        if len(row) != len(columns):
            raise LineError(f"{len(row)} columns; expected {len(columns)}, as in the first line")
        try:
            yield msgspec.convert(dict(zip(columns, row, strict=True)), kind, strict=False)
        except msgspec.ValidationError as error:
            raise LineError(f"{shown(','.join(row))}: {error}") from error


def has_columns(*names: str) -> Callable[[str], bool]:
    """Whether a line names all these columns of a CSV file."""

    def recognises(first: str) -> bool:
        try:
            return set(next(csv.reader([first]), [])) >= set(names)
        except csv.Error:
            return False

    return recognises


def has_keys(*keys: str) -> Callable[[str], bool]:
    """Whether a line is a JSON object that has all these keys."""

    def recognises(first: str) -> bool:
        try:
            record = msgspec.json.decode(first)
        except (msgspec.DecodeError, RecursionError):
            return False
        return isinstance(record, dict) and all(key in record for key in keys)

    return recognises


class Rows:
    """Requests of one trace, in any order of time. A reader adds what it knows, says what it leaves out, and how large
    a prefix's chunks are (`chunk_tokens`)."""

    def __init__(self) -> None:
        self.chunk_tokens = 0
        self._skipped: Counter[ChangeKind] = Counter()
        self._noted: Counter[ChangeKind] = Counter()
        self._arrived = array("d")
        self._prompt = array("q")
        self._output = array("q")
        self._maximum = array("q")
        self._codes = {name: array("i") for name in (*LABELS, "session")}
        self._numbers: dict[str, dict[str, int]] = {name: {"": 0} for name in self._codes}
        self._hashes = array("q")
        self._starts = array("q")
        self._counts = array("i")
        self._known: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self._arrived)

    def add(
        self,
        arrived_s: float,
        prompt_tokens: int,
        output_tokens: int,
        prefix: Sequence[int] = (),
        max_tokens: int = 0,
        **labels: str | None,
    ) -> None:
        """One request; `labels` are names of the columns in LABELS and `session`."""
        number = len(self._arrived)
        if not prompt_tokens or not output_tokens:
            self._noted[ChangeKind.LENGTH_RAISED] += 1
        self._arrived.append(arrived_s)
        self._prompt.append(prompt_tokens)
        self._output.append(output_tokens)
        self._maximum.append(max_tokens)
        for name, label in labels.items():
            if label:
                codes, numbers = self._codes[name], self._numbers[name]
                _pad(codes, number)
                codes.append(numbers.setdefault(label, len(numbers)))
        if prefix and self.chunk_tokens:
            whole = prefix[: prompt_tokens // self.chunk_tokens]
            if len(whole) < len(prefix):
                self._noted[ChangeKind.PARTIAL_BLOCK_DROPPED] += 1
            if whole:
                _pad(self._starts, number)
                _pad(self._counts, number)
                self._starts.append(self._place(whole))
                self._counts.append(len(whole))

    def skip(self, kind: ChangeKind) -> None:
        """One request is left out."""
        self._skipped[kind] += 1

    def note(self, kind: ChangeKind) -> None:
        """Something of the request that was just added is left out."""
        self._noted[kind] += 1

    def changes(self) -> tuple[TraceChange, ...]:
        """What was left out or changed so far."""
        kept, count = len(self), len(self) + self._skipped.total()
        return (
            *(TraceChange(kind, skipped, count, _WORDS[kind]) for kind, skipped in self._skipped.items()),
            *(TraceChange(kind, noted, kept, _WORDS[kind]) for kind, noted in self._noted.items()),
        )

    def trace(self) -> Trace:
        """The trace, its first request at second 0."""
        arrived = np.array(self._arrived)
        unsorted = int((arrived < np.maximum.accumulate(arrived)).sum())
        in_order = TraceChange(ChangeKind.SORTED, unsorted, len(arrived), _WORDS[ChangeKind.SORTED])
        for column in (*self._codes.values(), self._starts, self._counts):
            _pad(column, len(arrived))
        maximum = np.array(self._maximum, dtype=np.int64)
        labels = {
            name: Labels(tuple(self._numbers[name]), np.array(self._codes[name], dtype=np.int32))
            for name in LABELS
            if self._given(name)
        }
        prefixes = None
        if self._hashes:
            hashes, starts = (np.array(column, dtype=np.int64) for column in (self._hashes, self._starts))
            prefixes = Prefixes(self.chunk_tokens, hashes, starts, np.array(self._counts, dtype=np.int32))
        whole = Trace(
            arrived,
            np.maximum(np.array(self._prompt, dtype=np.int64), 1),
            np.maximum(np.array(self._output, dtype=np.int64), 1),
            max_tokens=maximum if maximum.any() else None,
            session=np.array(self._codes["session"], dtype=np.int64) - 1 if self._given("session") else None,
            prefixes=prefixes,
            changes=self.changes(),
            **labels,
        )
        return whole.changed(in_order).at(arrived - arrived.min(initial=np.inf))

    def _given(self, name: str) -> bool:
        return len(self._numbers[name]) > 1

    def _place(self, prefix: Sequence[int]) -> int:
        """Where the prefix stands in the array of hashes; one that stands there already is not written again."""
        chain = array("q", prefix)
        start = self._known.get(chain[-1])
        if start is None or self._hashes[start : start + len(chain)] != chain:
            start = self._known[chain[-1]] = len(self._hashes)
            self._hashes.extend(chain)
        return start


def _pad(column: "array[int]", count: int) -> None:
    """Fills a column up to `count` with zeros: what the requests before did not have."""
    if len(column) < count:
        column.frombytes(bytes(column.itemsize * (count - len(column))))


_WORDS = {
    ChangeKind.FAILED_SKIPPED: "left out: failed when it was recorded (no response tokens)",
    ChangeKind.UNCOUNTED_SKIPPED: "left out: without token counts (refused, or failed, when it was recorded)",
    ChangeKind.LOG_TYPE_DROPPED: "the log type is not used: it is no traffic class",
    ChangeKind.PARTIAL_BLOCK_DROPPED: "hashes beyond the prompt's whole blocks are not used: a cache holds no parts",
    ChangeKind.LENGTH_RAISED: "a length of 0 tokens counts as 1",
    ChangeKind.SORTED: "stood after a later one in the file: sorted by time",
}


@dataclass(frozen=True, slots=True)
class Format:
    """A trace format.

    `recognises` says whether a first line is of it; no two formats recognise the same line. `read` adds the requests in
    the lines (the first one included) to the rows; it raises LineError where a line is not of the format. `begins` says
    how the first line looks.
    """

    name: str
    begins: str
    recognises: Callable[[str], bool]
    read: Callable[[Iterable[str], Rows], None]
