"""What a worksheet expects of the traffic, hour by hour. Pure."""

import math
import zoneinfo
from dataclasses import dataclass, field
from datetime import datetime

from deployments.traffic.counts import Stream

DAY_HOURS, WEEK_HOURS = 24, 168


@dataclass(frozen=True, slots=True)
class ExpectedStream:
    """Of one model, class and region, in each hour of the day (24) or of the week from Monday (168), in `time_zone`:
    requests/s, and mean prompt and output tokens. The share of prompt tokens from the prefix cache (None: not stated).
    The plan is for rates that have grown by the factor `growth`: rates in between are expected, too."""

    stream: Stream
    hourly: tuple[float, ...]
    prompt_tokens: tuple[float, ...]
    output_tokens: tuple[float, ...]
    prefix_share: float | None = None
    growth: float = 1.0
    time_zone: str = "UTC"

    def __post_init__(self) -> None:
        if len(self.hourly) not in (DAY_HOURS, WEEK_HOURS) or not all(0 <= rate < math.inf for rate in self.hourly):
            raise ValueError(f"hourly: {len(self.hourly)} rates; allowed: 24 or 168, none of them negative")

    def hour_of(self, unix_s: int) -> int:
        """The number of the hour that begins then."""
        local = datetime.fromtimestamp(unix_s, zoneinfo.ZoneInfo(self.time_zone))
        return (local.weekday() * DAY_HOURS + local.hour) % len(self.hourly)


@dataclass(frozen=True, slots=True)
class Tolerance:
    """By how much a figure may stay off the worksheet without being drift: rates and lengths as a share, the prefix
    share in absolute terms."""

    rate: float = 0.25
    lengths: float = 0.2
    prefix_share: float = 0.1


@dataclass(frozen=True, slots=True)
class Expected:
    """All streams of a worksheet."""

    streams: tuple[ExpectedStream, ...]
    tolerance: Tolerance = field(default_factory=Tolerance)
