"""What a worksheet expects of the traffic, in the form in which recorded traffic is compared with it. Pure."""

import math
import zoneinfo
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

import numpy as np
from numpy.typing import NDArray

from deployments.traffic.counts import LengthCounts, Stream, edges_of

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
TAIL_SHARE = 0.05
"""Of the lengths, so many count as long."""
DAY_HOURS, WEEK_HOURS = 24, 168
NO_SPREAD = 1.0
"""The squared coefficient of variation of lengths of which only the mean is stated: that of an exponential
distribution."""


@dataclass(frozen=True, slots=True)
class ExpectedLengths:
    """`mean` in tokens; `spread`: variance over squared mean. `shares` by bucket of `LengthCounts`, which add up to 1;
    None where only the mean is stated. `factors`: the mean of each hour of the day or week over the whole one; `tails`:
    the share above `tail_tokens` in each hour, where it is known."""

    mean: float
    spread: float = NO_SPREAD
    shares: Mapping[int, float] | None = None
    factors: tuple[float, ...] = (1.0,)
    tails: tuple[float, ...] | None = None

    def above(self, tokens: float, scale: float = 1.0) -> float:
        """The share that is longer than `tokens`, if all lengths were `scale` times as long. Needs `shares`."""
        assert self.shares is not None
        found = 0.0
        for bucket, share in self.shares.items():
            low, high = (edge * scale for edge in edges_of(bucket))
            found += share * min(1.0, max(0.0, (high - tokens) / (high - low)))
        return min(1.0, found)

    @property
    def tail_tokens(self) -> float | None:
        """The upper edge of a bucket that about `TAIL_SHARE` exceed; None where that is not known."""
        left = 0.0
        for bucket in sorted(self.shares or {}, reverse=True):
            left += (self.shares or {})[bucket]
            if left > TAIL_SHARE:
                return edges_of(bucket)[1]
        return None


def lengths_of(counts: LengthCounts) -> ExpectedLengths:
    """What was recorded is expected to go on, at all hours alike. Raises ValueError without any length."""
    if not len(counts):
        raise ValueError("no length was recorded; allowed: at least one")
    total, mean = len(counts), max(counts.mean, 1.0)
    spread = max(0.0, counts.square_sum() / total / mean**2 - 1)
    return ExpectedLengths(mean, spread, {bucket: count / total for bucket, count in counts.buckets.items()})


@dataclass(frozen=True, slots=True)
class ExpectedStream:
    """Of one model, class and region: requests/s in each hour of the day (24) or of the week from Monday (168), in
    `time_zone`; lengths; the share of prompt tokens from the prefix cache (None: not stated). The plan is for rates
    that have grown by the factor `growth`: rates in between are expected, too."""

    stream: Stream
    hourly: tuple[float, ...]
    prompt: ExpectedLengths
    output: ExpectedLengths
    prefix_share: float | None = None
    growth: float = 1.0
    time_zone: str = "UTC"

    def __post_init__(self) -> None:
        if len(self.hourly) not in (DAY_HOURS, WEEK_HOURS) or not all(0 <= rate < math.inf for rate in self.hourly):
            raise ValueError(f"hourly: {len(self.hourly)} rates; allowed: 24 or 168, none of them negative")


@dataclass(frozen=True, slots=True)
class Tolerance:
    """By how much a figure may stay off the worksheet without being drift: rates and lengths as a share, the prefix
    share in absolute terms."""

    rate: float = 0.25
    lengths: float = 0.2
    prefix_share: float = 0.1

    def __post_init__(self) -> None:
        for name in ("rate", "lengths", "prefix_share"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(f"{name} = {getattr(self, name):g}: allowed: 0 to below 1")


@dataclass(frozen=True, slots=True)
class Expected:
    """All streams of a worksheet."""

    streams: tuple[ExpectedStream, ...]
    tolerance: Tolerance = field(default_factory=Tolerance)


class Clock:
    """The hours of a time zone at minutes that begin at those times (unix seconds, ascending)."""

    def __init__(self, begins: IntArray, time_zone: str) -> None:
        zone = zoneinfo.ZoneInfo(time_zone)
        hours, index = np.unique(begins // 3_600, return_inverse=True)
        local = [datetime.fromtimestamp(int(hour) * 3_600, zone) for hour in hours]
        # where a zone is off by half an hour, the minutes count from the local full hour
        first = np.array([at.weekday() * DAY_HOURS + at.hour + at.minute / 60 for at in local])
        self.hours: FloatArray = first[index] + begins % 3_600 / 3_600
        """Since Monday's midnight."""

    def range_of(self, hourly: tuple[float, ...]) -> tuple[FloatArray, FloatArray]:
        """The lowest and the highest figure that may be expected at each minute, of figures by hour.

        What is true does not jump at the full hour: the hour's own figure and the straight line between the middles of
        hours both are as expected.
        """
        figures = np.array(hourly)
        before = np.floor(self.hours - 0.5).astype(np.int64)
        part = self.hours - 0.5 - before
        step = figures[np.floor(self.hours).astype(np.int64) % len(figures)]
        line = figures[before % len(figures)] * (1 - part) + figures[(before + 1) % len(figures)] * part
        return np.minimum(step, line), np.maximum(step, line)
