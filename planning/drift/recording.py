"""Recorded traffic: read from a cell's store or a copy of its page, or counted from a trace; and as the demand that a
worksheet states."""

import json
import zoneinfo
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path

import numpy as np

from cluster.errors import InputError
from deployments.store import CellStoreError
from deployments.traffic.counts import (
    LengthCounts,
    Period,
    Stream,
    Stretches,
    StretchRecord,
    TrafficCounts,
    bucket_of,
)
from deployments.traffic.store import read_traffic
from deployments.wire import from_plain
from planning.workload.arrivals import FloatArray
from planning.workload.lengths import IntArray
from planning.workload.trace import Labels, Trace
from planning.worksheet.demand import DAY_HOURS, WEEK_HOURS

_SQLITE = b"SQLite format 3\0"


class RecordingError(InputError):
    """A recording that cannot be used; the message names the file."""


def read_recording(path: Path, period: Period) -> Stretches:
    """The counts in a cell's store, or in JSON saved from `/raylane/traffic`. Raises RecordingError."""
    try:
        with path.open("rb") as file:
            is_database = file.read(len(_SQLITE)) == _SQLITE
        if is_database:
            return read_traffic(path, period)
        return of_all_tenants(from_plain(json.loads(path.read_text(encoding="utf-8")), StretchRecord))
    except CellStoreError as error:
        raise RecordingError(str(error)) from error
    except OSError as error:
        raise RecordingError(f"{path}: cannot be read: {error.strerror or error}") from error
    except ValueError as error:
        raise RecordingError(f"{path}: holds no counts of traffic: {error}") from error


def is_recording(path: Path) -> bool:
    """Whether the file begins as a cell's store does, or as a copy of its page."""
    try:
        with path.open("rb") as file:
            begin = file.read(64)
    except OSError:
        return False
    return begin.startswith(_SQLITE) or begin.lstrip().startswith(b'{"counts"')


def of_all_tenants(record: StretchRecord) -> Stretches:
    """What a cell's page says, the tenants counted together."""
    found = record.stretches()
    whole = Stretches(seconds=found.seconds)
    for (period, begin, stream), counts in found.counts.items():
        whole.of(period, begin, replace(stream, tenant="")).merge(counts)
    return whole


def stretches_of_trace(trace: Trace, stream: Stream, start_unix_s: float = 0.0) -> Stretches:
    """The requests of a trace as a gateway would have counted them; `stream` names what the trace does not. Prefix hits
    are unknown to a trace."""
    found = Stretches()
    end_s = float(trace.arrived_s[-1]) if len(trace) else 0.0
    found.watch(start_unix_s, start_unix_s + end_s)
    columns = (trace.model, stream.model), (trace.traffic_class, stream.traffic_class), (trace.region, stream.region)
    names = [_named(column, default, len(trace)) for column, default in columns]
    sizes = [len(column.names) for column in names]
    codes = np.ravel_multi_index([column.codes for column in names], sizes)
    for code in np.unique(codes):
        model, traffic_class, region = (
            column.names[part] for column, part in zip(names, np.unravel_index(code, sizes), strict=True)
        )
        chosen = codes == code
        for period in Period:
            begins = (start_unix_s + trace.arrived_s[chosen]) // period
            stretch = Stream(model, traffic_class, region)
            _count(found, period, stretch, begins, trace.prompt_tokens[chosen], trace.output_tokens[chosen])
    return found


def _named(column: Labels | None, default: str, count: int) -> Labels:
    """The column, with a name for each request."""
    if column is None:
        return Labels((default,), np.zeros(count, dtype=np.int32))
    return Labels(tuple(name or default for name in column.names), column.codes)


def _count(
    found: Stretches, period: Period, stream: Stream, begins: FloatArray, prompt: IntArray, output: IntArray
) -> None:
    """Requests whose stretches have those numbers."""
    numbers, index, requests = np.unique(begins, return_inverse=True, return_counts=True)
    lengths = [_lengths(index, len(numbers), tokens) for tokens in (prompt, output)]
    for number, count, prompts, outputs in zip(numbers.tolist(), requests.tolist(), *lengths, strict=True):
        new = TrafficCounts(count, count, 0, prompts.tokens, 0, outputs.tokens, prompts, outputs)
        found.of(period, number * period, stream).merge(new)


def _lengths(index: IntArray, size: int, tokens: IntArray) -> list[LengthCounts]:
    """The lengths of each stretch; `index` numbers the stretch of each request."""
    values, inverse = np.unique(tokens, return_inverse=True)
    buckets = np.array([bucket_of(value) for value in values.tolist()])[inverse]
    width = int(buckets.max()) + 1
    pairs, counts = np.unique(index * width + buckets, return_counts=True)
    found = [LengthCounts(int(total)) for total in np.bincount(index, tokens, size)]
    for pair, count in zip(pairs.tolist(), counts.tolist(), strict=True):
        found[pair // width].buckets[pair % width] = count
    return found


@dataclass(frozen=True, slots=True)
class RecordedStream:
    """One stream as a worksheet states it: mean requests/s by hour, 24 of a day or 168 of a week from Monday; lengths
    as values with weights; the share of prompt tokens from the prefix cache."""

    stream: Stream
    hourly: tuple[float, ...]
    prompt: tuple[tuple[int, int], ...]
    output: tuple[tuple[int, int], ...]
    prefix_share: float


def recorded_streams(recorded: Stretches, time_zone: str = "UTC") -> tuple[RecordedStream, ...]:
    """The streams of a recording: by hour of the week where each was watched for half an hour at least, else by hour of
    the day. An hour of the day that was not watched gets the mean of the others. Raises ValueError for a recording
    without any request."""
    zone = zoneinfo.ZoneInfo(time_zone)
    begins = recorded.begins(Period.HOUR)
    hours = np.array([_hour_of_week(begin, zone) for begin in begins], dtype=np.int64)
    watched = np.array([recorded.watched_s(Period.HOUR, begin) for begin in begins])
    weekly = np.bincount(hours, watched, WEEK_HOURS) if begins else np.zeros(WEEK_HOURS)
    size = WEEK_HOURS if weekly.min() >= _ENOUGH_S else DAY_HOURS
    watched_s = weekly.reshape(-1, size).sum(axis=0)
    found = []
    for stream in recorded.streams():
        by_hour = [TrafficCounts() for _ in range(size)]
        for begin, hour in zip(begins, hours.tolist(), strict=True):
            if (counts := recorded.counts.get((Period.HOUR, begin, stream))) is not None:
                by_hour[hour % size].merge(counts)
        if any(one.finished for one in by_hour):
            found.append(_stream(stream, by_hour, watched_s))
    if not found:
        raise ValueError("the recording holds no request with an engine's statistics; allowed: at least one")
    return tuple(found)


_ENOUGH_S = 1_800


def _stream(stream: Stream, hours: list[TrafficCounts], watched_s: FloatArray) -> RecordedStream:
    requests = np.array([float(one.requests) for one in hours])
    mean = float(requests.sum() / watched_s.sum())
    rates = np.where(watched_s > 0, requests / np.maximum(watched_s, 1e-9), mean)
    whole = TrafficCounts()
    for one in hours:
        whole.merge(one)
    share = whole.cached_tokens / whole.prompt_tokens if whole.prompt_tokens else 0.0
    lengths = whole.prompt.weighted(), whole.output.weighted()
    return RecordedStream(stream, tuple(rates.tolist()), *lengths, share)


def _hour_of_week(begin: int, zone: zoneinfo.ZoneInfo) -> int:
    local = datetime.fromtimestamp(begin, zone)
    return local.weekday() * DAY_HOURS + local.hour
