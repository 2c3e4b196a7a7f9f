"""BurstGPT (github.com/HPMLL/BurstGPT): CSV of times, models and lengths; newer releases with sessions.

A row without response tokens is a request that failed: there is nothing to replay. The log type (API or conversation)
is not kept: it is no class of service.
"""

import csv
from collections.abc import Iterable

from planning.workload.formats.format import Format, Rows

_NEEDED = {"Timestamp", "Model", "Request tokens", "Response tokens"}


def _recognises(first: str) -> bool:
    return set(next(csv.reader([first]), [])) >= _NEEDED


def _read(lines: Iterable[str], rows: Rows) -> None:
    records = csv.reader(lines)
    columns = next(records)
    at, model, prompt, output = (
        columns.index(name) for name in ("Timestamp", "Model", "Request tokens", "Response tokens")
    )
    session = columns.index("Session ID") if "Session ID" in columns else None
    for record in records:
        if len(record) not in (0, len(columns)):
            raise ValueError(f"a row of {len(record)} columns; allowed: {len(columns)}")
        if record and int(record[output]) > 0:
            rows.add(
                float(record[at]),
                int(record[prompt]),
                int(record[output]),
                model=record[model],
                session="" if session is None else record[session],
            )


BURSTGPT = Format(
    "BurstGPT CSV",
    "model; session where there is one",
    _recognises,
    _read,
    "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
    "5,1,2.5,ChatGPT,472,18,490,Conversation log\n45,,0,GPT-4,1087,230,1317,API "
    "log\n118,1,1.0,ChatGPT,417,276,693,Conversation log\n",
)
