"""The counts of one stretch of traffic, and how they add up. Pure.

Lengths are counted in logarithmic buckets, eight for each doubling:

    bucket(n) = ceil(8 * log2(n)),    which holds 2^((b-1)/8) < n <= 2^(b/8) tokens

A bucket is 9 % wide: a length that is read from it is at most 9 % off, its middle 4.5 %. A power of two is always the
upper edge of a bucket. Sums are exact. What two stretches, gateways or nodes counted is added, and nothing is lost.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import IntEnum

from deployments.wire import Natural

PER_OCTAVE = 8


class Period(IntEnum):
    """The length of a stretch, in seconds. A stretch begins at a multiple of it (unix time)."""

    MINUTE = 60
    HOUR = 3_600


@dataclass(frozen=True, slots=True)
class Stream:
    """Whose requests: `tenant` is empty for clients without a key, and where tenants are counted together."""

    model: str
    traffic_class: str
    region: str
    tenant: str = ""


def bucket_of(tokens: int) -> int:
    """The bucket of a length; lengths of 0 and 1 share the first."""
    return math.ceil(PER_OCTAVE * math.log2(tokens)) if tokens > 1 else 0


def edges_of(bucket: int) -> tuple[float, float]:
    """A bucket holds lengths above the first and up to the second (tokens)."""
    return (0.0, 1.0) if bucket <= 0 else (2 ** ((bucket - 1) / PER_OCTAVE), 2 ** (bucket / PER_OCTAVE))


@dataclass(slots=True)
class LengthCounts:
    """How many lengths there were in each bucket, and their exact sum (tokens)."""

    tokens: Natural = 0
    buckets: dict[int, Natural] = field(default_factory=dict)

    def __len__(self) -> int:
        return sum(self.buckets.values())

    @property
    def mean(self) -> float:
        """In tokens; 0 without any."""
        return self.tokens / len(self) if self.buckets else 0.0

    def add(self, tokens: int) -> None:
        self.tokens += tokens
        bucket = bucket_of(tokens)
        self.buckets[bucket] = self.buckets.get(bucket, 0) + 1

    def merge(self, other: "LengthCounts") -> None:
        """Adds another stretch's."""
        self.tokens += other.tokens
        for bucket, count in other.buckets.items():
            self.buckets[bucket] = self.buckets.get(bucket, 0) + count

    def square_sum(self) -> float:
        """The sum of squares (tokens^2), each length taken as its bucket's middle; within 9 %."""
        return sum(
            count * (2 ** (2 * (bucket - 0.5) / PER_OCTAVE) if bucket else 1.0)
            for bucket, count in self.buckets.items()
        )

    def weighted(self) -> tuple[tuple[int, int], ...]:
        """A length for each bucket, and how many there are (tokens, count), ascending. The lengths are the middles of
        the buckets, moved by the one factor that makes the mean right."""
        middles = {bucket: sum(edges_of(bucket)) / 2 if bucket else 1.0 for bucket in sorted(self.buckets)}
        tokens = sum(middles[bucket] * count for bucket, count in self.buckets.items())
        scale = self.tokens / tokens if tokens else 1.0
        return tuple((max(1, round(middle * scale)), self.buckets[bucket]) for bucket, middle in middles.items())


@dataclass(slots=True)
class TrafficCounts:
    """The requests of a stream that ended in a stretch.

    `finished` ones have an engine's statistics; their `prompt` and `output` lengths are those of one sequence, and
    `cached_tokens` of all their `prompt_tokens` came from the prefix cache. `rejected` ones were turned away, or waited
    too long, and reached no engine. The rest were cancelled, or failed.
    """

    requests: Natural = 0
    finished: Natural = 0
    rejected: Natural = 0
    prompt_tokens: Natural = 0
    cached_tokens: Natural = 0
    output_tokens: Natural = 0
    prompt: LengthCounts = field(default_factory=LengthCounts)
    output: LengthCounts = field(default_factory=LengthCounts)

    def finish(self, prompt_tokens: int, cached_tokens: int, output_tokens: int, sequences: int = 1) -> None:
        """A request's statistics, over all its sequences."""
        self.finished += 1
        self.prompt_tokens += prompt_tokens
        self.cached_tokens += cached_tokens
        self.output_tokens += output_tokens
        self.prompt.add(round(prompt_tokens / sequences))
        self.output.add(round(output_tokens / sequences))

    def merge(self, other: "TrafficCounts") -> None:
        """Adds another stretch's."""
        for name in _NUMBERS:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.prompt.merge(other.prompt)
        self.output.merge(other.output)


_NUMBERS = ("requests", "finished", "rejected", "prompt_tokens", "cached_tokens", "output_tokens")


@dataclass(slots=True)
class Stretches:
    """Counts by period, beginning (unix seconds) and stream; and for how many seconds each stretch was watched.

    Where several gateways watch at once, their seconds add up to more than the stretch has: `watched_s` says so.
    """

    counts: dict[tuple[Period, int, Stream], TrafficCounts] = field(default_factory=dict)
    seconds: dict[tuple[Period, int], float] = field(default_factory=dict)

    def of(self, period: Period, unix_s: float, stream: Stream) -> TrafficCounts:
        """The counts of the stretch in which that time lies; new where nothing was counted yet."""
        key = (period, begin_of(period, unix_s), stream)
        found = self.counts.get(key)
        if found is None:
            found = self.counts[key] = TrafficCounts()
        return found

    def watch(self, from_unix_s: float, to_unix_s: float) -> None:
        """Somebody counted from one time to the other (of the day)."""
        for period in Period:
            at_s = from_unix_s
            while at_s < to_unix_s:
                begin = begin_of(period, at_s)
                until_s = min(to_unix_s, begin + period)
                self.seconds[period, begin] = self.seconds.get((period, begin), 0.0) + until_s - at_s
                at_s = until_s

    def watched_s(self, period: Period, begin: int) -> float:
        """For how long at least one gateway counted in that stretch (seconds), if gateways overlap as far as they
        can."""
        return min(float(period), self.seconds.get((period, begin), 0.0))

    def merge(self, other: "Stretches") -> None:
        """Adds what another gateway or node counted."""
        for (period, begin, stream), counts in other.counts.items():
            self.of(period, begin, stream).merge(counts)
        for key, seconds in other.seconds.items():
            self.seconds[key] = self.seconds.get(key, 0.0) + seconds

    def begins(self, period: Period) -> list[int]:
        """When its stretches begin, ascending (unix seconds)."""
        return sorted({begin for one, begin in self.seconds if one is period} | {key[1] for key in self._of(period)})

    def streams(self) -> list[Stream]:
        """Of all stretches, in the order of their names."""
        found = {stream for _, _, stream in self.counts}
        return sorted(found, key=lambda one: (one.model, one.traffic_class, one.region, one.tenant))

    def record(self) -> "StretchRecord":
        """Rows, as others read them."""
        counts = [
            (period, begin, one.model, one.traffic_class, one.region, one.tenant, found)
            for (period, begin, one), found in self.counts.items()
        ]
        return StretchRecord(counts, [(period, begin, seconds) for (period, begin), seconds in self.seconds.items()])

    def _of(self, period: Period) -> Iterable[tuple[Period, int, Stream]]:
        return (key for key in self.counts if key[0] is period)


@dataclass(frozen=True, slots=True)
class StretchRecord:
    """`counts`: period, begin, model, class, region, tenant, and the counts; `watched`: period, begin, seconds."""

    counts: list[tuple[Period, int, str, str, str, str, TrafficCounts]]
    watched: list[tuple[Period, int, float]]

    def stretches(self) -> Stretches:
        found = Stretches()
        for period, begin, model, traffic_class, region, tenant, counts in self.counts:
            found.of(period, begin, Stream(model, traffic_class, region, tenant)).merge(counts)
        for period, begin, seconds in self.watched:
            found.seconds[period, begin] = seconds
        return found


def begin_of(period: Period, unix_s: float) -> int:
    """When the stretch begins in which that time lies (unix seconds)."""
    return int(unix_s // period) * int(period)
