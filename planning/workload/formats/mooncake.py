"""Mooncake (github.com/kvcache-ai/Mooncake): JSON lines with times in milliseconds, and hashes of the prompt's blocks
of 512 tokens.

A hash names its block and all before it. The last one of a prompt may be of a part of a block, and is then left out.
"""

from collections.abc import Iterable

from msgspec import Struct

from planning.workload.formats.format import Format, Hash, Rows, Seconds, Tokens, has_keys, json_records

BLOCK_TOKENS = 512


class _Request(Struct):
    timestamp: Seconds
    input_length: Tokens
    output_length: Tokens
    hash_ids: list[Hash] = []


def _read(lines: Iterable[str], rows: Rows) -> None:
    rows.chunk_tokens = BLOCK_TOKENS
    for one in json_records(lines, _Request):
        rows.add(one.timestamp / 1_000, one.input_length, one.output_length, one.hash_ids)


MOONCAKE = Format(
    "Mooncake JSONL",
    '{"timestamp": ..., "input_length": ..., "output_length": ...}',
    has_keys("timestamp", "input_length", "output_length"),
    _read,
)
