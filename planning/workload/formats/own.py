"""raylane's trace: JSON lines that hold all that a `Trace` does, version 1. `raylane traffic FILE --out TRACE` writes
it.

The first line is the head: `raylane_trace` (the version) and `chunk_tokens`, the tokens of a prefix's chunk (0: no
prefixes). Each further line is a request: `arrived_s`, `prompt_tokens`, `output_tokens` and, where known, `max_tokens`,
`tenant`, `class`, `model`, `region`, `session` (a number) and `prefix`: the hashes of its leading chunks, as runs
[first, count, first, count, ...] of numbers that follow each other.
"""

import json
from collections.abc import Iterable, Iterator, Sequence

from planning.workload.formats.format import (
    Format,
    LineError,
    Rows,
    field_of,
    has_keys,
    label,
    objects,
    seconds,
    shown,
    tokens,
)
from planning.workload.lengths import MAX_TOKENS
from planning.workload.trace import LABELS, Trace

VERSION = 1
_KEYS = {name: "class" if name == "traffic_class" else name for name in LABELS}


def lines_of(trace: Trace) -> Iterator[str]:
    """The trace's lines, each with its end."""
    prefixes = trace.prefixes
    yield (
        json.dumps({"raylane_trace": VERSION, "chunk_tokens": prefixes.chunk_tokens if prefixes is not None else 0})
        + "\n"
    )
    arrived, prompt, output = trace.arrived_s.tolist(), trace.prompt_tokens.tolist(), trace.output_tokens.tolist()
    maximum = None if trace.max_tokens is None else trace.max_tokens.tolist()
    session = None if trace.session is None else trace.session.tolist()
    labels = [(key, column) for name, key in _KEYS.items() if (column := getattr(trace, name)) is not None]
    for index in range(len(trace)):
        record: dict[str, object] = {
            "arrived_s": round(arrived[index], 6),
            "prompt_tokens": prompt[index],
            "output_tokens": output[index],
        }
        if maximum is not None and maximum[index]:
            record["max_tokens"] = maximum[index]
        for key, column in labels:
            if name := column[index]:
                record[key] = name
        if session is not None and session[index] >= 0:
            record["session"] = session[index]
        if prefixes is not None and (prefix := prefixes[index]):
            record["prefix"] = runs_of(prefix)
        yield json.dumps(record) + "\n"


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
    whole = isinstance(runs, list) and all(type(one) is int and 0 <= one < 1 << 63 for one in runs)
    if not whole or len(runs) % 2 or not all(1 <= count <= MAX_TOKENS for count in runs[1::2]):
        raise LineError(f"prefix = {shown(runs)}", "pairs of a first hash and a count of at least 1")
    return [hash_ for first, count in zip(runs[::2], runs[1::2], strict=True) for hash_ in range(first, first + count)]


def _read(lines: Iterable[str], rows: Rows) -> None:
    each = objects(lines)
    head = next(each)
    if head["raylane_trace"] != VERSION:
        raise LineError(f"raylane_trace = {shown(head['raylane_trace'])}", str(VERSION))
    rows.chunk_tokens = tokens("chunk_tokens", field_of(head, "chunk_tokens"))
    for record in each:
        session = record.get("session")
        rows.add(
            seconds("arrived_s", field_of(record, "arrived_s")),
            tokens("prompt_tokens", field_of(record, "prompt_tokens")),
            tokens("output_tokens", field_of(record, "output_tokens")),
            hashes_of(record["prefix"]) if "prefix" in record else (),
            tokens("max_tokens", record.get("max_tokens", 0)),
            session="" if session is None else str(session),
            **{name: label(key, record.get(key)) for name, key in _KEYS.items()},
        )


OWN = Format(
    "raylane trace JSONL",
    '{"raylane_trace": 1, "chunk_tokens": ...}',
    "tenant, class, model, region, session, max_tokens, prefix hashes",
    has_keys("raylane_trace"),
    _read,
    '{"raylane_trace": 1, "chunk_tokens": 64}\n'
    '{"arrived_s": 0.0, "prompt_tokens": 200, "output_tokens": 6, "tenant": "t", "class": "batch", "session": 0, '
    '"prefix": [5, 2, 90, 1]}\n'
    '{"arrived_s": 1.5, "prompt_tokens": 70, "output_tokens": 9, "model": "m", "region": "eu", "max_tokens": 99, '
    '"prefix": [5, 1]}\n'
    '{"arrived_s": 1.5, "prompt_tokens": 30, "output_tokens": 9}\n',
)
