"""The contract of a trace format, and what readers share.

A new format is one file and one line in `__init__.py`; the conformance test finds it there.
"""

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from planning.workload.formats.rows import Rows


@dataclass(frozen=True, slots=True)
class Format:
    """A trace format.

    `recognises` says whether a first line is of it; no two formats recognise the same line. `read` adds the requests in the lines (the first one
    included) to the rows; it may raise KeyError, TypeError, ValueError or OverflowError where a line is not of the format. `holds` says in words what
    it holds beyond times and lengths. `sample` is a small file of it, of three requests or more.
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
