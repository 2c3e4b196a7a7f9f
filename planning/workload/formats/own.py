"""raylane's trace: JSON lines that hold all that a `Trace` does, version 1. `raylane traffic FILE --out TRACE` writes
it.

The first line is the head: `raylane_trace` (the version) and `chunk_tokens`, the tokens of a prefix's chunk (0: no
prefixes). Each further line is a request: `arrived_s`, `prompt_tokens`, `output_tokens` and, where known, `max_tokens`,
`tenant`, `class`, `model`, `region`, `session` (a number) and `prefix`: the hashes of its leading chunks, as runs
[first, count, first, count, ...] of numbers that follow each other.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from planning.workload.formats.format import (
    Format,
    Hash,
    LineError,
    Rows,
    Seconds,
    Tokens,
    has_keys,
    json_records,
    shown,
)
from planning.workload.lengths import MAX_TOKENS
from planning.workload.trace import LABELS, Trace

VERSION = 1


class _Head(Struct):
    raylane_trace: Annotated[int, Meta(ge=VERSION, le=VERSION)]
    chunk_tokens: Tokens


class _Request(Struct, rename={"traffic_class": "class"}, omit_defaults=True):
    arrived_s: Seconds
    prompt_tokens: Tokens
    output_tokens: Tokens
    max_tokens: Tokens = 0
    tenant: str = ""
    traffic_class: str = ""
    model: str = ""
    region: str = ""
    session: int | None = None
    prefix: list[Hash] = []


def lines_of(trace: Trace) -> Iterator[bytes]:
    """The trace's lines, each with its end."""
    encode, prefixes = msgspec.json.Encoder().encode, trace.prefixes
    yield encode(_Head(VERSION, 0 if prefixes is None else prefixes.chunk_tokens)) + b"\n"
    arrived, prompt, output = trace.arrived_s.tolist(), trace.prompt_tokens.tolist(), trace.output_tokens.tolist()
    maximum = None if trace.max_tokens is None else trace.max_tokens.tolist()
    session = None if trace.session is None else trace.session.tolist()
    labels = [(name, column) for name in LABELS if (column := getattr(trace, name)) is not None]
    for index in range(len(trace)):
        record = _Request(round(arrived[index], 6), prompt[index], output[index])
        record.max_tokens = 0 if maximum is None else maximum[index]
        for name, column in labels:
            setattr(record, name, column[index])
        if session is not None and session[index] >= 0:
            record.session = session[index]
        if prefixes is not None:
            record.prefix = runs_of(prefixes[index])
        yield encode(record) + b"\n"


def runs_of(hashes: Sequence[int]) -> list[int]:
    """The hashes as runs: [7, 8, 9, 4] is [7, 3, 4, 1]."""
    runs: list[int] = []
    for hash_ in hashes:
        if runs and hash_ == runs[-2] + runs[-1]:
            runs[-1] += 1
        else:
            runs += (hash_, 1)
    return runs


def hashes_of(runs: Sequence[int]) -> list[int]:
    """The hashes that stand there as runs. Raises LineError for what are no runs."""
    if len(runs) % 2 or not all(1 <= count <= MAX_TOKENS for count in runs[1::2]):
        raise LineError(f"prefix = {shown(runs)}; expected pairs of a first hash and a count of at least 1")
    return [hash_ for first, count in zip(runs[::2], runs[1::2], strict=True) for hash_ in range(first, first + count)]


def _read(lines: Iterable[str], rows: Rows) -> None:
    lines = iter(lines)
    (head,) = json_records([next(lines)], _Head)
    rows.chunk_tokens = head.chunk_tokens
    for one in json_records(lines, _Request):
        session = "" if one.session is None else str(one.session)
        labels = {name: getattr(one, name) for name in LABELS}
        prefix = hashes_of(one.prefix)
        rows.add(one.arrived_s, one.prompt_tokens, one.output_tokens, prefix, one.max_tokens, session=session, **labels)


OWN = Format(
    "raylane trace JSONL",
    '{"raylane_trace": 1, "chunk_tokens": ...}',
    has_keys("raylane_trace"),
    _read,
)
