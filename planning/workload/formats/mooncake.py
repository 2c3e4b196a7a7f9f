"""Mooncake (github.com/kvcache-ai/Mooncake): JSON lines with times in milliseconds, and hashes of the prompt's blocks
of 512 tokens.

A hash names its block and all before it. The last one of a prompt may be of a part of a block, and is then left out.
"""

from collections.abc import Iterable

from planning.workload.formats.format import (
    Format,
    LineError,
    Rows,
    field_of,
    has_keys,
    objects,
    seconds,
    shown,
    tokens,
)

BLOCK_TOKENS = 512


def _read(lines: Iterable[str], rows: Rows) -> None:
    rows.chunk_tokens = BLOCK_TOKENS
    for record in objects(lines):
        rows.add(
            seconds("timestamp", field_of(record, "timestamp")) / 1_000,
            tokens("input_length", field_of(record, "input_length")),
            tokens("output_length", field_of(record, "output_length")),
            _hashes(record.get("hash_ids", [])),
        )


def _hashes(found: object) -> list[int]:
    if not isinstance(found, list) or not all(type(one) is int and 0 <= one < 1 << 63 for one in found):
        raise LineError(f"hash_ids = {shown(found)}", f"a list of whole numbers, one a block of {BLOCK_TOKENS} tokens")
    return found


MOONCAKE = Format(
    "Mooncake JSONL",
    '{"timestamp": ..., "input_length": ..., "output_length": ...}',
    "prefix hashes by blocks of 512 tokens",
    has_keys("timestamp", "input_length", "output_length"),
    _read,
    '{"timestamp": 0, "input_length": 1100, "output_length": 6, "hash_ids": [0, 1, 2]}\n'
    '{"timestamp": 277, "input_length": 1024, "output_length": 9, "hash_ids": [0, 3]}\n'
    '{"timestamp": 300, "input_length": 30, "output_length": 9}\n',
)
