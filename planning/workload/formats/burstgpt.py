"""BurstGPT (github.com/HPMLL/BurstGPT): CSV of times, models and lengths; newer releases with sessions.

A row without response tokens is a request that failed: there is nothing to replay. The log type (API or conversation)
is not kept: it is no class of service.
"""

import csv
from collections.abc import Iterable

from planning.workload.changes import ChangeKind
from planning.workload.formats.format import Format, Rows, cells, seconds, tokens

_NEEDED = {"Timestamp", "Model", "Request tokens", "Response tokens"}


def _recognises(first: str) -> bool:
    return set(next(csv.reader([first]), [])) >= _NEEDED


def _read(lines: Iterable[str], rows: Rows) -> None:
    records = csv.reader(lines)
    columns = next(records)
    at, model, prompt, output = (
        columns.index(name) for name in ("Timestamp", "Model", "Request tokens", "Response tokens")
    )
    session, log_type = (columns.index(name) if name in columns else None for name in ("Session ID", "Log Type"))
    for record in records:
        if not cells(record, len(columns)):
            continue
        output_tokens = tokens("Response tokens", record[output])
        if not output_tokens:
            rows.skip(ChangeKind.FAILED_SKIPPED)
            continue
        rows.add(
            seconds("Timestamp", record[at]),
            tokens("Request tokens", record[prompt]),
            output_tokens,
            model=record[model],
            session="" if session is None else record[session],
        )
        if log_type is not None and record[log_type]:
            rows.note(ChangeKind.LOG_TYPE_DROPPED)


BURSTGPT = Format(
    "BurstGPT CSV",
    "with the columns Timestamp,Model,Request tokens,Response tokens",
    "model; session where there is one",
    _recognises,
    _read,
    "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
    "5,1,2.5,ChatGPT,472,18,490,Conversation log\n45,,0,GPT-4,1087,230,1317,API "
    "log\n118,1,1.0,ChatGPT,417,276,693,Conversation log\n",
)
