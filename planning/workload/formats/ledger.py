"""raylane's own ledger: the trace file that a gateway writes (`gateway.trace_file`, `deployments/telemetry/ledger.py`),
JSON lines.

It holds no prefix hashes: a gateway writes nothing down that a prompt could be known by.
"""

from collections.abc import Iterable

from planning.workload.formats.format import Format, Rows, has_keys, objects


def _read(lines: Iterable[str], rows: Rows) -> None:
    """A request that was refused has no token counts: there is nothing to replay."""
    for record in objects(lines):
        if record.get("prompt_tokens") and record.get("output_tokens"):
            rows.add(
                float(record["arrived_s"]),
                int(record["prompt_tokens"]),
                int(record["output_tokens"]),
                max_tokens=int(record.get("max_tokens") or 0),
                tenant=record.get("tenant") or "",
                traffic_class=record.get("class") or "",
                model=record.get("model") or "",
            )


LEDGER = Format(
    "raylane ledger JSONL",
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
