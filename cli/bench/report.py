"""What a run showed: rates and percentiles, as a table for people and as JSON for machines. Durations in both are
milliseconds."""

from typing import Any

import numpy as np
from rich.console import Group
from rich.text import Text

from cli.bench.record import Histogram, RunRecord
from cli.console import Table
from planning.workload.arrivals import FloatArray

SCHEMA_VERSION = 1
PERCENTILES = (50, 90, 95, 99)
_METRICS = {"ttft": "time to first token", "itl": "between tokens", "tpot": "per output token", "e2e": "end to end"}

Spread = dict[str, float | int | None]


def spread(values_s: FloatArray) -> Spread:
    """Count, mean, percentiles and maximum of durations in seconds, in milliseconds; None where there is no value."""
    if len(values_s) == 0:
        return {"count": 0, "mean": None, **{f"p{percent}": None for percent in PERCENTILES}, "max": None}
    points = np.percentile(values_s, PERCENTILES)
    return {
        "count": len(values_s),
        "mean": _ms(float(values_s.mean())),
        **{f"p{percent}": _ms(float(point)) for percent, point in zip(PERCENTILES, points, strict=True)},
        "max": _ms(float(values_s.max())),
    }


def spread_of_histogram(histogram: Histogram) -> Spread:
    """The same from a histogram."""
    if histogram.count == 0:
        return spread(np.empty(0))
    return {
        "count": histogram.count,
        "mean": _ms(histogram.mean),
        **{f"p{percent}": _ms(histogram.percentile(percent)) for percent in PERCENTILES},
        "max": _ms(histogram.max),
    }


def summary(record: RunRecord) -> dict[str, Any]:
    """The figures of a run."""
    elapsed = record.elapsed_s
    return {
        "elapsed_s": round(elapsed, 6),
        "requests": {
            "ok": record.ok,
            "failed": record.failed,
            "unfinished": record.unfinished,
            "by_error": {
                label: {"count": seen.count, "example": seen.example} for label, seen in record.failures.items()
            },
        },
        "tokens": {
            "prompt": record.prompt_tokens,
            "cached": record.cached_tokens,
            "output": record.output_tokens,
            "requests_without_usage": record.without_usage,
        },
        "throughput": {
            "requests_per_s": _rate(record.ok, elapsed),
            "output_tokens_per_s": _rate(record.output_tokens, elapsed),
            "total_tokens_per_s": _rate(record.prompt_tokens + record.output_tokens, elapsed),
        },
        "latency_ms": {
            "ttft": spread(record.ttft_s.values),
            "itl": spread_of_histogram(record.itl),
            "tpot": spread(record.tpot_s.values),
            "e2e": spread(record.e2e_s.values),
        },
        "client_late_ms": spread(record.late_s.values),
    }


def render(title: str, figures: dict[str, Any], notes: list[str]) -> Group:
    """The tables that the command prints: the counts, the latencies, each failure with its first message, and notes."""
    parts: list[Table | Text] = [_counts(title, figures), _latencies(figures["latency_ms"])]
    if figures["requests"]["by_error"]:
        parts.append(_errors(figures["requests"]["by_error"]))
    late = figures["client_late_ms"]["p99"]
    if late is not None and late > 50:
        notes = [*notes, f"this client sent requests late (p99 {late:.0f} ms); the measured latencies are too low"]
    if figures["tokens"]["requests_without_usage"]:
        notes = [
            *notes,
            f"{figures['tokens']['requests_without_usage']} answers reported no usage; their output tokens are counted "
            "by events",
        ]
    return Group(*parts, *(Text(f"note: {note}", style="yellow") for note in notes))


def _counts(title: str, figures: dict[str, Any]) -> Table:
    requests, tokens, rates = figures["requests"], figures["tokens"], figures["throughput"]
    unfinished = f", {requests['unfinished']} unfinished" if requests["unfinished"] else ""
    table = Table(title=title, show_header=False, title_justify="left")
    table.add_row(
        "requests", f"{requests['ok']} ok, {requests['failed']} failed{unfinished} in {figures['elapsed_s']:.1f} s"
    )
    table.add_row("requests/s", f"{rates['requests_per_s']:.2f}")
    table.add_row("output tokens/s", f"{rates['output_tokens_per_s']:.0f}")
    cached = "" if tokens["cached"] is None else f" ({tokens['cached']} from the prefix cache)"
    table.add_row("tokens", f"{tokens['prompt']} in{cached}, {tokens['output']} out")
    return table


def _latencies(latencies: dict[str, Spread]) -> Table:
    columns = ("mean", *(f"p{percent}" for percent in PERCENTILES), "max")
    table = Table("ms", "", *columns)
    for column in table.columns[2:]:
        column.justify = "right"
    for name, meaning in _METRICS.items():
        values = [latencies[name][column] for column in columns]
        table.add_row(name.upper(), meaning, *("-" if value is None else f"{value:.1f}" for value in values))
    return table


def _errors(by_error: dict[str, dict[str, Any]]) -> Table:
    table = Table("failed", "how", "first message")
    for label, seen in sorted(by_error.items(), key=lambda item: -item[1]["count"]):
        table.add_row(str(seen["count"]), Text(label), Text(seen["example"]))
    return table


def _rate(amount: float, elapsed_s: float) -> float:
    return round(amount / elapsed_s, 3) if elapsed_s > 0 else 0.0


def _ms(seconds: float) -> float:
    return round(seconds * 1_000, 4)
