"""Collects the samples of a run in columns of numbers: about 60 bytes a request, and a histogram for the gaps between
tokens.

No chunk and no body is kept.
"""

import math
from dataclasses import dataclass, field

import numpy as np

from cli.bench.answer import Sample, TokenUsage
from planning.workload.arrivals import FloatArray

LOWEST_S, HIGHEST_S, GROWTH = 1e-6, 1e3, 1.005
_LOG_GROWTH = math.log(GROWTH)
_BINS = math.ceil(math.log(HIGHEST_S / LOWEST_S) / _LOG_GROWTH) + 2
"""The first bin holds what is below LOWEST_S (events that came in one chunk have a gap of 0), the last what is above
HIGHEST_S."""


class Histogram:
    """Durations in seconds; `add` arrays of them, then ask for `percentile`s."""

    def __init__(self) -> None:
        self._bins = np.zeros(_BINS, dtype=np.int64)
        self._sum = 0.0
        self.count = 0
        self.max = 0.0

    def add(self, durations_s: FloatArray) -> None:
        """Counts each duration of the array."""
        if len(durations_s) == 0:
            return
        positions = np.log(np.maximum(durations_s, LOWEST_S / 2) / LOWEST_S) / _LOG_GROWTH
        indices = np.clip(np.floor(positions).astype(np.int64) + 1, 0, _BINS - 1)
        np.add.at(self._bins, indices, 1)
        self._sum += float(durations_s.sum())
        self.count += len(durations_s)
        self.max = max(self.max, float(durations_s.max()))

    @property
    def mean(self) -> float:
        """The exact mean, in seconds. Raises ZeroDivisionError when nothing was added."""
        return self._sum / self.count

    def percentile(self, percent: float) -> float:
        """The duration in seconds that `percent` of the values do not exceed, to within a bin."""
        rank = max(1, math.ceil(self.count * percent / 100))
        index = int(np.searchsorted(np.cumsum(self._bins), rank))
        if index == 0:
            return 0.0
        middle: float = LOWEST_S * GROWTH ** (index - 0.5)
        return min(middle, self.max)


class GrowingArray:
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
class RunRecord:
    """The samples of one run. Latencies are those of answered requests only; a failure's is not a latency."""

    ttft_s: GrowingArray = field(default_factory=GrowingArray)
    tpot_s: GrowingArray = field(default_factory=GrowingArray)
    e2e_s: GrowingArray = field(default_factory=GrowingArray)
    late_s: GrowingArray = field(default_factory=GrowingArray)
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
            usage = TokenUsage(0, None, sample.events)
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
