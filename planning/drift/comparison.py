"""Recorded traffic against a worksheet, hour by hour and over all hours: which figures have left it. Pure.

A figure is off where its interval lies beyond its bounds, which are the expected figure and the tolerance: a plan has
headroom, and few requests prove nothing. The interval holds the true figure in 95 of 100 cases, if requests come
independently: of rates that of a Poisson count (Garwood 1936), of mean lengths and prefix shares the normal one. Real
requests come in clusters, which the tolerance has to cover.
"""

import math
import zoneinfo
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from scipy.stats import chi2

from deployments.traffic.counts import LengthCounts, Period, Stream, Stretches, TrafficCounts
from planning.worksheet.demand import DAY_HOURS

RATE_TOLERANCE, LENGTH_TOLERANCE, PREFIX_TOLERANCE = 0.25, 0.2, 0.1
"""By how much a figure may stay off the worksheet without being drift: rates and lengths as a share, the prefix share
in absolute terms."""
MINOR = 0.01
"""Traffic that the worksheet does not have is named where it is more than this share of all requests."""
_Z, _TAIL = 1.96, 0.025
_FEW = 0.05
"""Of the mean rate, so much may come at any hour: it needs no replica of its own."""


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

    def hour_of(self, unix_s: int) -> int:
        """The number of the hour that begins then."""
        local = datetime.fromtimestamp(unix_s, zoneinfo.ZoneInfo(self.time_zone))
        return (local.weekday() * DAY_HOURS + local.hour) % len(self.hourly)


class DriftQuantity(StrEnum):
    """A figure of a worksheet that traffic can leave."""

    RATE = "rate"
    PROMPT_TOKENS = "prompt_tokens"
    OUTPUT_TOKENS = "output_tokens"
    PREFIX_SHARE = "prefix_share"


@dataclass(frozen=True, slots=True)
class HourlyFigure:
    """One figure over some time from `begin_unix_s` on: requests/s, tokens, or a share. `exposure`: seconds, requests
    or prompt tokens. `low` and `high`: the interval of `observed`; `least` and `most`: the bounds."""

    begin_unix_s: int
    exposure: float
    expected: float
    observed: float
    low: float
    high: float
    least: float
    most: float

    @property
    def is_off(self) -> bool:
        """Whether the interval lies beyond the bounds."""
        return self.low > self.most or self.high < self.least

    @property
    def ratio(self) -> float:
        """Observed over expected; NaN where nothing was expected."""
        return self.observed / self.expected if self.expected else math.nan


@dataclass(frozen=True, slots=True)
class ComparedFigure:
    """One figure of one stream: over all hours, and in each that was watched."""

    stream: Stream
    quantity: DriftQuantity
    whole: HourlyFigure
    hours: tuple[HourlyFigure, ...]

    @property
    def off(self) -> HourlyFigure | None:
        """The figure that has left the worksheet: in the last hour, or else over all hours."""
        return next((one for one in (self.hours[-1], self.whole) if one.is_off), None)


@dataclass(frozen=True, slots=True)
class Comparison:
    """`unplanned`: streams that the worksheet does not have, with their requests/s, where they are more than `MINOR` of
    all requests. `unseen`: streams of the worksheet without any request."""

    from_unix_s: int
    to_unix_s: int
    watched_s: float
    figures: tuple[ComparedFigure, ...] = ()
    unplanned: tuple[tuple[Stream, float], ...] = ()
    unseen: tuple[Stream, ...] = ()

    @property
    def off(self) -> tuple[ComparedFigure, ...]:
        """What has left the worksheet."""
        return tuple(one for one in self.figures if one.off is not None)


def compare(expected: Sequence[ExpectedStream], recorded: Stretches) -> Comparison:
    """Compares the recorded minutes, in hours of the worksheet's time zone. Raises ValueError where there are none."""
    minutes = recorded.begins(Period.MINUTE)
    if not minutes:
        raise ValueError("no minute was recorded; allowed: at least one")
    zone = zoneinfo.ZoneInfo(next((one.time_zone for one in expected), "UTC"))
    hours = {begin: _hour_begin(begin, zone) for begin in minutes}
    watched: dict[int, float] = {}
    for begin, hour in hours.items():
        watched[hour] = watched.get(hour, 0.0) + recorded.watched_s(Period.MINUTE, begin)
    counts: dict[Stream, dict[int, TrafficCounts]] = {}
    for (period, begin, stream), found in recorded.counts.items():
        if period is Period.MINUTE:
            counts.setdefault(stream, {}).setdefault(hours[begin], TrafficCounts()).merge(found)
    requests = {stream: sum(one.requests for one in own.values()) for stream, own in counts.items()}
    planned = {one.stream for one in expected}
    watched_s, total = sum(watched.values()), sum(requests.values())
    figures = (figure for one in expected for figure in _figures(one, counts.get(one.stream, {}), watched))
    return Comparison(
        minutes[0],
        minutes[-1] + 60,
        watched_s,
        tuple(figures),
        tuple(
            (one, requests[one] / watched_s)
            for one in recorded.streams()
            if one not in planned and requests.get(one, 0) > MINOR * total
        ),
        tuple(one for one in sorted(planned, key=str) if not requests.get(one)),
    )


def _hour_begin(unix_s: int, zone: zoneinfo.ZoneInfo) -> int:
    """Of the zone's hour: in some zones it is no hour of UTC."""
    local = datetime.fromtimestamp(unix_s, zone)
    return unix_s - 60 * local.minute - local.second


def _figures(
    expected: ExpectedStream, counts: dict[int, TrafficCounts], watched: dict[int, float]
) -> Iterator[ComparedFigure]:
    hours = [(begin, expected.hour_of(begin), counts.get(begin, TrafficCounts())) for begin in sorted(watched)]
    few, scale = _FEW * sum(expected.hourly) / len(expected.hourly), 1 + RATE_TOLERANCE
    rates: list[HourlyFigure] = []
    prompts: list[HourlyFigure] = []
    outputs: list[HourlyFigure] = []
    shares: list[HourlyFigure] = []
    for begin, hour, of_hour in hours:
        rate = expected.hourly[hour]
        if watched[begin] > 0:
            bounds = rate * min(1.0, expected.growth) / scale, max(few, rate * max(1.0, expected.growth) * scale)
            rates.append(_rate(begin, of_hour.requests, watched[begin], max(few, rate), bounds))
        prompts += _mean(begin, of_hour.prompt, expected.prompt_tokens[hour])
        outputs += _mean(begin, of_hour.output, expected.output_tokens[hour])
        if expected.prefix_share is not None:
            shares += _share(begin, of_hour, expected.prefix_share)
    for quantity, spans in (
        (DriftQuantity.RATE, rates if any(expected.hourly) else []),
        (DriftQuantity.PROMPT_TOKENS, prompts),
        (DriftQuantity.OUTPUT_TOKENS, outputs),
        (DriftQuantity.PREFIX_SHARE, shares),
    ):
        if spans:
            yield ComparedFigure(expected.stream, quantity, _together(quantity, spans), tuple(spans))


def _rate(begin: int, requests: float, seconds: float, expected: float, bounds: tuple[float, float]) -> HourlyFigure:
    low = chi2.ppf(_TAIL, 2 * requests) / 2 if requests else 0.0
    high = chi2.ppf(1 - _TAIL, 2 * requests + 2) / 2
    return HourlyFigure(
        begin, seconds, expected, requests / seconds, float(low) / seconds, float(high) / seconds, *bounds
    )


def _mean(begin: int, lengths: LengthCounts, expected: float) -> Iterable[HourlyFigure]:
    if len(lengths) and expected:
        variance = max(0.0, lengths.square_sum() / len(lengths) - lengths.mean**2)
        # one length alone has no variance: it proves nothing
        error = _Z * math.sqrt(variance / len(lengths)) if len(lengths) > 1 else math.inf
        bounds = expected / (1 + LENGTH_TOLERANCE), expected * (1 + LENGTH_TOLERANCE)
        yield _normal(begin, len(lengths), expected, lengths.mean, error, bounds)


def _share(begin: int, counts: TrafficCounts, expected: float) -> Iterable[HourlyFigure]:
    """Tokens of one prompt are hits or not together: n prompts of lengths x count as sum(x)^2 / sum(x^2) trials."""
    if counts.prompt_tokens and (squares := counts.prompt.square_sum()):
        share, trials = counts.cached_tokens / counts.prompt_tokens, counts.prompt.tokens**2 / squares
        error = _Z * math.sqrt(max(expected * (1 - expected), share * (1 - share)) / trials)
        bounds = expected - PREFIX_TOLERANCE, expected + PREFIX_TOLERANCE
        yield _normal(begin, counts.prompt_tokens, expected, share, error, bounds)


def _normal(
    begin: int, exposure: float, expected: float, observed: float, error: float, bounds: tuple[float, float]
) -> HourlyFigure:
    return HourlyFigure(begin, exposure, expected, observed, observed - error, observed + error, *bounds)


def _together(quantity: DriftQuantity, spans: Sequence[HourlyFigure]) -> HourlyFigure:
    """All hours: figures and bounds by their exposure; errors of means add up as independent ones do."""
    exposure = sum(one.exposure for one in spans)

    def mean(name: str) -> float:
        return sum(one.exposure * float(getattr(one, name)) for one in spans) / exposure

    expected, observed, bounds = mean("expected"), mean("observed"), (mean("least"), mean("most"))
    if quantity is DriftQuantity.RATE:
        return _rate(spans[0].begin_unix_s, round(observed * exposure), exposure, expected, bounds)
    known = [one for one in spans if math.isfinite(one.high)]
    errors = sum((one.exposure * (one.high - one.observed)) ** 2 for one in known)
    error = math.sqrt(errors) / exposure if known else math.inf
    return _normal(spans[0].begin_unix_s, exposure, expected, observed, error, bounds)
