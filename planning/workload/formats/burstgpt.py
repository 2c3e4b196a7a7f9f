"""BurstGPT (github.com/HPMLL/BurstGPT): CSV of times, models and lengths; newer releases with sessions.

A row without response tokens is a request that failed: there is nothing to replay. The log type (API or conversation)
is not kept: it is no class of service.
"""

from collections.abc import Iterable

from msgspec import Struct

from planning.workload.changes import ChangeKind
from planning.workload.formats.format import Format, Rows, Seconds, Tokens, csv_records, has_columns

_COLUMNS = {
    "arrived_s": "Timestamp",
    "model": "Model",
    "prompt": "Request tokens",
    "output": "Response tokens",
    "session": "Session ID",
    "log_type": "Log Type",
}


class _Request(Struct, rename=_COLUMNS):
    arrived_s: Seconds
    model: str
    prompt: Tokens
    output: Tokens
    session: str = ""
    log_type: str = ""


def _read(lines: Iterable[str], rows: Rows) -> None:
    for one in csv_records(lines, _Request):
        if not one.output:
            rows.skip(ChangeKind.FAILED_SKIPPED)
            continue
        rows.add(one.arrived_s, one.prompt, one.output, model=one.model, session=one.session)
        if one.log_type:
            rows.note(ChangeKind.LOG_TYPE_DROPPED)


BURSTGPT = Format(
    "BurstGPT CSV",
    "with the columns Timestamp,Model,Request tokens,Response tokens",
    has_columns("Timestamp", "Model", "Request tokens", "Response tokens"),
    _read,
)
