"""The samples of a run in columns, its figures, and the table of them. The figures' names are those of the file that
`vllm bench serve --save-result` writes."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from rich.console import Group
from rich.text import Text

from cli.bench.answer import Sample, TokenUsage
from cli.console import Table
from planning.workload.arrivals import FloatArray

PERCENTILES = (50, 90, 95, 99)
_COLUMNS = ("mean", *(f"p{percent}" for percent in PERCENTILES), "max")
_METRICS = {"ttft": "time to first token", "itl": "between tokens", "tpot": "per output token", "e2el": "end to end"}
_LATE_MS = 50.0

Spread = dict[str, float | None]


@dataclass(slots=True)
class RunRecord:
    """Latencies, in seconds, are those of answered requests only; a failure's is not a latency. `itl_s`: of each
    request. `example`: by the kind of failure, the message of the first."""

    ttft_s: list[float] = field(default_factory=list)
    tpot_s: list[float] = field(default_factory=list)
    e2e_s: list[float] = field(default_factory=list)
    late_s: list[float] = field(default_factory=list)
    itl_s: list[FloatArray] = field(default_factory=list)
    failures: Counter[str] = field(default_factory=Counter)
    example: dict[str, str] = field(default_factory=dict)
    ok: int = 0
    unfinished: int = 0
    without_usage: int = 0
    prompt_tokens: int = 0
    cached_tokens: int | None = None
    output_tokens: int = 0
    first_sent_at: float | None = None
    last_ended_at: float = 0.0

    @property
    def failed(self) -> int:
        return self.failures.total()

    @property
    def ended(self) -> int:
        """Requests that were answered or failed."""
        return self.ok + self.failed

    @property
    def elapsed_s(self) -> float:
        """Seconds from the first request sent to the last one ended."""
        return 0.0 if self.first_sent_at is None else self.last_ended_at - self.first_sent_at

    def add(self, sample: Sample) -> None:
        """Takes one request that has ended. Where the server counts no output tokens, its events with tokens are
        counted."""
        self.first_sent_at = sample.sent_at if self.first_sent_at is None else min(self.first_sent_at, sample.sent_at)
        self.last_ended_at = max(self.last_ended_at, sample.ended_at)
        if sample.failure is not None:
            self.failures[sample.failure.label] += 1
            self.example.setdefault(sample.failure.label, sample.failure.message)
            return
        self.ok += 1
        self.without_usage += sample.usage is None
        usage = sample.usage or TokenUsage(0, None, sample.events)
        if usage.cached_tokens is not None:
            self.cached_tokens = (self.cached_tokens or 0) + usage.cached_tokens
        self.prompt_tokens += usage.prompt_tokens
        self.output_tokens += usage.output_tokens
        self.e2e_s.append(sample.e2e_s)
        self.itl_s.append(sample.gaps_s)
        if sample.ttft_s is not None:
            self.ttft_s.append(sample.ttft_s)
        if sample.decode_s is not None and usage.output_tokens > 1:
            self.tpot_s.append(sample.decode_s / (usage.output_tokens - 1))


def spread(values_s: ArrayLike) -> Spread:
    """The number of durations in seconds; their mean, percentiles and maximum in milliseconds, None where there is no
    value."""
    values = np.asarray(values_s, dtype=np.float64)
    if not len(values):
        return {"count": 0, **dict.fromkeys(_COLUMNS)}
    figures = [values.mean(), *np.percentile(values, PERCENTILES), values.max()]
    columns = {name: round(1e3 * float(value), 4) for name, value in zip(_COLUMNS, figures, strict=True)}
    return {"count": len(values), **columns}


def figures_of(record: RunRecord) -> dict[str, Any]:
    """The figures of a run."""
    elapsed_s, tokens = record.elapsed_s, record.prompt_tokens + record.output_tokens
    gaps = np.concatenate(record.itl_s) if record.itl_s else ()
    spreads = {"ttft": record.ttft_s, "itl": gaps, "tpot": record.tpot_s, "e2el": record.e2e_s, "late": record.late_s}
    return {
        "duration": round(elapsed_s, 6),
        "completed": record.ok,
        "failed": record.failed,
        "unfinished": record.unfinished,
        "errors": dict(record.failures.most_common()),
        "total_input_tokens": record.prompt_tokens,
        "total_cached_tokens": record.cached_tokens,
        "total_output_tokens": record.output_tokens,
        "request_throughput": _rate(record.ok, elapsed_s),
        "output_throughput": _rate(record.output_tokens, elapsed_s),
        "total_token_throughput": _rate(tokens, elapsed_s),
        **{
            f"{column}_{name}_ms": found[column]
            for name, found in ((name, spread(values)) for name, values in spreads.items())
            for column in _COLUMNS
        },
    }


def _rate(amount: float, elapsed_s: float) -> float:
    return round(amount / elapsed_s, 3) if elapsed_s > 0 else 0.0


def rendered(title: str, record: RunRecord, notes: Iterable[str]) -> Group:
    """What the command prints: the counts, the latencies, each kind of failure with its first message, and notes."""
    figures = figures_of(record)
    counts = Table(title=title, show_header=False, title_justify="left")
    unfinished = f", {record.unfinished} unfinished" if record.unfinished else ""
    cached = "" if record.cached_tokens is None else f" ({record.cached_tokens} from the prefix cache)"
    counts.add_row("requests", f"{record.ok} ok, {record.failed} failed{unfinished} in {record.elapsed_s:.1f} s")
    counts.add_row("requests/s", f"{figures['request_throughput']:.2f}")
    counts.add_row("output tokens/s", f"{figures['output_throughput']:.0f}")
    counts.add_row("tokens", f"{record.prompt_tokens} in{cached}, {record.output_tokens} out")
    latencies = Table("ms", "", *_COLUMNS)
    for column in latencies.columns[2:]:
        column.justify = "right"
    for name, meaning in _METRICS.items():
        values = [figures[f"{column}_{name}_ms"] for column in _COLUMNS]
        latencies.add_row(name.upper(), meaning, *("-" if value is None else f"{value:.1f}" for value in values))
    parts = [counts, latencies]
    if record.failures:
        errors = Table("failed", "how", "first message")
        for label, count in record.failures.most_common():
            errors.add_row(str(count), Text(label), Text(record.example[label]))
        parts.append(errors)
    noted = list(notes)
    if (late := figures["p99_late_ms"]) is not None and late > _LATE_MS:
        noted.append(f"this client sent requests late (p99 {late:.0f} ms); the measured latencies are too low")
    if record.without_usage:
        noted.append(f"{record.without_usage} answers reported no usage; their output tokens are counted by events")
    return Group(*parts, *(Text(f"note: {note}", style="yellow") for note in noted))
