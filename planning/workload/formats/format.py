"""The contract of a trace format, and what readers share.

A new format is one file and one line in `__init__.py`; the conformance test finds it there.
"""

import json
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from planning.workload.trace import LABELS, Labels, Prefixes, Trace


class Rows:
    """Requests of one trace, in any order of time. A reader adds what it knows, and says in `chunk_tokens` how large a
    prefix's chunks are."""

    def __init__(self) -> None:
        self.chunk_tokens = 0
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
        **labels: str,
    ) -> None:
        """One request; `labels` are names of the columns in LABELS and `session`. Raises ValueError and TypeError for
        values of no sense."""
        if prompt_tokens < 0 or output_tokens < 0 or max_tokens < 0:
            raise ValueError(f"{min(prompt_tokens, output_tokens, max_tokens)} tokens; allowed: 0 or more")
        number = len(self._arrived)
        self._arrived.append(arrived_s)
        self._prompt.append(prompt_tokens)
        self._output.append(output_tokens)
        self._maximum.append(max_tokens)
        for name, label in labels.items():
            if label:
                codes, numbers = self._codes[name], self._numbers[name]
                _pad(codes, number)
                codes.append(numbers.setdefault(label, len(numbers)))
        if prefix and self.chunk_tokens and (whole := prefix[: prompt_tokens // self.chunk_tokens]):
            _pad(self._starts, number)
            _pad(self._counts, number)
            self._starts.append(self._place(whole))
            self._counts.append(len(whole))

    def trace(self) -> Trace:
        """The trace, its first request at second 0. Raises ValueError for a time that is none."""
        arrived = np.array(self._arrived)
        if not np.isfinite(arrived).all():
            raise ValueError("a time that is no number")
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
        return Trace(
            arrived,
            np.maximum(np.array(self._prompt, dtype=np.int64), 1),
            np.maximum(np.array(self._output, dtype=np.int64), 1),
            max_tokens=maximum if maximum.any() else None,
            session=np.array(self._codes["session"], dtype=np.int64) - 1 if self._given("session") else None,
            prefixes=prefixes,
            **labels,
        ).at(arrived - arrived.min(initial=np.inf))

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


@dataclass(frozen=True, slots=True)
class Format:
    """A trace format.

    `recognises` says whether a first line is of it; no two formats recognise the same line. `read` adds the requests in
    the lines (the first one included) to the rows; it may raise KeyError, TypeError, ValueError or OverflowError where
    a line is not of the format. `holds` says in words what it holds beyond times and lengths. `sample` is a small file
    of it, of three requests or more.
    """

    name: str
    holds: str
    recognises: Callable[[str], bool]
    read: Callable[[Iterable[str], Rows], None]
    sample: str


def objects(lines: Iterable[str]) -> Iterator[dict[str, Any]]:
    """The JSON objects of the lines that are not empty."""
    return (json.loads(line) for line in lines if line.strip())


def has_keys(*keys: str) -> Callable[[str], bool]:
    """Whether a line is a JSON object that has all these keys."""

    def recognises(first: str) -> bool:
        try:
            record = json.loads(first)
        except ValueError:
            return False
        return isinstance(record, dict) and all(key in record for key in keys)

    return recognises
