"""Azure's LLM inference traces of 2023 and 2024 (github.com/Azure/AzurePublicDataset): CSV of times and lengths.

The two years have the same columns. The times of 2024 carry an offset from UTC; those of 2023 carry none, and are taken
for UTC.
"""

from collections.abc import Iterable
from datetime import UTC, datetime

from msgspec import Struct

from planning.workload.formats.format import Format, Rows, Tokens, csv_records

_COLUMNS = "TIMESTAMP,ContextTokens,GeneratedTokens"


class _Request(Struct):
    TIMESTAMP: datetime
    ContextTokens: Tokens
    GeneratedTokens: Tokens


def _read(lines: Iterable[str], rows: Rows) -> None:
    for one in csv_records(lines, _Request):
        arrived = one.TIMESTAMP if one.TIMESTAMP.tzinfo else one.TIMESTAMP.replace(tzinfo=UTC)
        rows.add(arrived.timestamp(), one.ContextTokens, one.GeneratedTokens)


AZURE = Format(
    "Azure CSV",
    _COLUMNS,
    lambda first: first.strip() == _COLUMNS,
    _read,
)
