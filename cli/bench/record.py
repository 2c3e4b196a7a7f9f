"""Collects the samples of a run in columns of numbers: about 60 bytes a request, and a histogram for the gaps between tokens.

`runner.py` adds samples as requests end; `report.py` reads the columns. No chunk and no body is kept.
"""

from dataclasses import dataclass, field

import numpy as np

from cli.bench.histogram import Histogram
from cli.bench.sample import Sample, Usage
from planning.workload.arrivals import FloatArray


class Column:
    """A growing array of numbers; `add` appends, `values` is a view of what was added."""

    def __init__(self) -> None:
        self._data: FloatArray = np.empty(1_024)
        self._count = 0

    def add(self, value: float) -> None:
        """Appends one number."""
        if self._count == len(self._data):
            self._data = np.concatenate([self._data, np.empty(len(self._data))])
        self._data[self._count] = value
        self._count += 1

    @property
    def values(self) -> FloatArray:
        """What was added, in order."""
        return self._data[: self._count]


@dataclass(slots=True)
class Failures:
    """How often one kind of failure was seen, and the message of the first."""

    count: int
    example: str


@dataclass(slots=True)
class Record:
    """The samples of one run. Latencies are those of answered requests only; a failure's is not a latency."""

    ttft_s: Column = field(default_factory=Column)
    tpot_s: Column = field(default_factory=Column)
    e2e_s: Column = field(default_factory=Column)
    late_s: Column = field(default_factory=Column)
    itl: Histogram = field(default_factory=Histogram)
    failures: dict[str, Failures] = field(default_factory=dict)
    ok: int = 0
    failed: int = 0
    unfinished: int = 0
    without_usage: int = 0
    prompt_tokens: int = 0
    cached_tokens: int | None = None
    output_tokens: int = 0
    first_sent_at: float | None = None
    last_ended_at: float | None = None

    @property
    def ended(self) -> int:
        """Requests that were answered or failed."""
        return self.ok + self.failed

    @property
    def elapsed_s(self) -> float:
        """Seconds from the first request sent to the last one ended."""
        if self.first_sent_at is None or self.last_ended_at is None:
            return 0.0
        return self.last_ended_at - self.first_sent_at

    def add(self, sample: Sample) -> None:
        """Takes one request that has ended."""
        self.first_sent_at = sample.sent_at if self.first_sent_at is None else min(self.first_sent_at, sample.sent_at)
        self.last_ended_at = sample.ended_at if self.last_ended_at is None else max(self.last_ended_at, sample.ended_at)
        if sample.failure is not None:
            self.failed += 1
            seen = self.failures.setdefault(sample.failure.label, Failures(0, sample.failure.message))
            seen.count += 1
            return
        self.ok += 1
        self._add_latencies(sample, self._add_usage(sample))

    def _add_usage(self, sample: Sample) -> int:
        """Returns the request's output tokens: the server's count, else the number of events that carried tokens."""
        usage = sample.usage
        if usage is None:
            self.without_usage += 1
            usage = Usage(0, None, sample.events)
        if usage.cached_tokens is not None:
            self.cached_tokens = (self.cached_tokens or 0) + usage.cached_tokens
        self.prompt_tokens += usage.prompt_tokens
        self.output_tokens += usage.output_tokens
        return usage.output_tokens

    def _add_latencies(self, sample: Sample, output_tokens: int) -> None:
        self.e2e_s.add(sample.e2e_s)
        self.itl.add(sample.gaps_s)
        if sample.ttft_s is not None:
            self.ttft_s.add(sample.ttft_s)
        if sample.decode_s is not None and output_tokens > 1:
            self.tpot_s.add(sample.decode_s / (output_tokens - 1))
