"""raylane's own ledger: the trace file that a gateway writes (`gateway.trace_file`, `deployments/telemetry/ledger.py`),
JSON lines.

It holds no prefix hashes: a gateway writes nothing down that a prompt could be known by.
"""

from collections.abc import Iterable

from msgspec import Struct

from planning.workload.changes import ChangeKind
from planning.workload.formats.format import Format, Rows, Seconds, Tokens, has_keys, json_records


class _Request(Struct, rename={"traffic_class": "class"}):
    arrived_s: Seconds
    prompt_tokens: Tokens | None = None
    output_tokens: Tokens | None = None
    max_tokens: Tokens | None = None
    tenant: str | None = None
    traffic_class: str | None = None
    model: str | None = None


def _read(lines: Iterable[str], rows: Rows) -> None:
    """A request that was refused has no token counts: there is nothing to replay."""
    for one in json_records(lines, _Request):
        if not one.prompt_tokens or not one.output_tokens:
            rows.skip(ChangeKind.UNCOUNTED_SKIPPED)
            continue
        rows.add(
            one.arrived_s,
            one.prompt_tokens,
            one.output_tokens,
            max_tokens=one.max_tokens or 0,
            tenant=one.tenant,
            traffic_class=one.traffic_class,
            model=one.model,
        )


LEDGER = Format(
    "raylane ledger JSONL",
    '{"request_id": ..., "arrived_s": ..., "prompt_tokens": ..., "output_tokens": ...}',
    has_keys("request_id", "arrived_s", "prompt_tokens", "output_tokens"),
    _read,
)
