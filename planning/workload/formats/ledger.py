"""raylane's own ledger: the trace file that a gateway writes (`gateway.trace_file`, `deployments/telemetry/ledger.py`),
JSON lines.

It holds no prefix hashes: a gateway writes nothing down that a prompt could be known by.
"""

from collections.abc import Iterable

from planning.workload.changes import ChangeKind
from planning.workload.formats.format import Format, Rows, field_of, has_keys, label, objects, seconds, tokens

_COUNTS = ("prompt_tokens", "output_tokens")


def _read(lines: Iterable[str], rows: Rows) -> None:
    """A request that was refused has no token counts: there is nothing to replay."""
    for record in objects(lines):
        prompt, output = (tokens(name, record.get(name) or 0) for name in _COUNTS)
        if not prompt or not output:
            rows.skip(ChangeKind.UNCOUNTED_SKIPPED)
            continue
        rows.add(
            seconds("arrived_s", field_of(record, "arrived_s")),
            prompt,
            output,
            max_tokens=tokens("max_tokens", record.get("max_tokens") or 0),
            tenant=label("tenant", record.get("tenant")),
            traffic_class=label("class", record.get("class")),
            model=label("model", record.get("model")),
        )


LEDGER = Format(
    "raylane ledger JSONL",
    '{"request_id": ..., "arrived_s": ..., "prompt_tokens": ..., "output_tokens": ...}',
    "tenant, class, model, max_tokens",
    has_keys("request_id", "arrived_s", "prompt_tokens", "output_tokens"),
    _read,
    '{"request_id": "a", "arrived_s": 1000.5, "prompt_tokens": 7, "output_tokens": 3, "tenant": "t", "class": "batch", '
    '"max_tokens": 9}\n'
    '{"request_id": "b", "arrived_s": 1000.2, "prompt_tokens": null, "output_tokens": null}\n'
    '{"request_id": "c", "arrived_s": 1000.0, "prompt_tokens": 5, "output_tokens": 2, "tenant": "", "class": '
    '"interactive", "model": "m"}\n'
    '{"request_id": "d", "arrived_s": 1000.7, "prompt_tokens": 8, "output_tokens": 1}\n',
)
