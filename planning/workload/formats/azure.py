"""Azure's LLM inference traces of 2023 and 2024 (github.com/Azure/AzurePublicDataset): CSV of times and lengths.

The two years have the same columns. The times of 2024 carry an offset from UTC; those of 2023 carry none, and are taken
for UTC.
"""

import csv
from collections.abc import Iterable
from datetime import UTC, datetime

from planning.workload.formats.format import Format, Rows

_COLUMNS = "TIMESTAMP,ContextTokens,GeneratedTokens"


def _read(lines: Iterable[str], rows: Rows) -> None:
    records = csv.reader(lines)
    next(records)
    for record in records:
        if record:
            stamp, prompt, output = record
            arrived = datetime.fromisoformat(stamp)
            rows.add((arrived if arrived.tzinfo else arrived.replace(tzinfo=UTC)).timestamp(), int(prompt), int(output))


AZURE = Format(
    "Azure CSV",
    "nothing more",
    lambda first: first.strip() == _COLUMNS,
    _read,
    f"{_COLUMNS}\n2023-11-16 18:15:46.6805900,374,44\n2023-11-16 18:15:50.9951690,396,0\n2024-05-10 "
    "00:00:00+00:00,2162,5\n",
)
