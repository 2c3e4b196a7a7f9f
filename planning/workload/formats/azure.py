"""Azure's LLM inference traces of 2023 and 2024 (github.com/Azure/AzurePublicDataset): CSV of times and lengths.

The two years have the same columns. The times of 2024 carry an offset from UTC; those of 2023 carry none, and are taken
for UTC.
"""

import csv
from collections.abc import Iterable
from datetime import UTC, datetime

from planning.workload.formats.format import Format, LineError, Rows, cells, shown, tokens

_COLUMNS = "TIMESTAMP,ContextTokens,GeneratedTokens"


def _read(lines: Iterable[str], rows: Rows) -> None:
    records = csv.reader(lines)
    next(records)
    for record in records:
        if cells(record, 3):
            stamp, prompt, output = record
            rows.add(_unix_s(stamp), tokens("ContextTokens", prompt), tokens("GeneratedTokens", output))


def _unix_s(stamp: str) -> float:
    try:
        arrived = datetime.fromisoformat(stamp)
    except ValueError as error:
        expected = "a time, as 2023-11-16 18:15:46.68 or with an offset from UTC"
        raise LineError(f"TIMESTAMP = {shown(stamp)}", expected) from error
    return (arrived if arrived.tzinfo else arrived.replace(tzinfo=UTC)).timestamp()


AZURE = Format(
    "Azure CSV",
    _COLUMNS,
    "nothing more",
    lambda first: first.strip() == _COLUMNS,
    _read,
    f"{_COLUMNS}\n2023-11-16 18:15:46.6805900,374,44\n2023-11-16 18:15:50.9951690,396,0\n2024-05-10 "
    "00:00:00+00:00,2162,5\n",
)
