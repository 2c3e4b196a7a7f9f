"""Bounds by time of day and week (`replicas.schedule`), in time for what is to be ready. Pure, but for the time zone
database of the machine.

    window      an entry on one day: from the first moment at which the zone's clock shows its begin (or a later time,
                where the clock is set forward over it) to the first one at which it shows its end. So entries that
                follow each other leave no gap, and none of them holds twice in an hour that the clock shows twice.
    minimum(t)  the largest minimum in force at any time from t to t + lead
    lead        the learned start-up time, one period of the policy, and 60 s for each full `up_per_minute` that the
                rate limit delays the last replica by. What was raised for a later time stays raised until then, though
                the learned start-up time falls meanwhile.
    maximum(t)  the maximum in force at t, but at least minimum(t)
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import datetime, time, timedelta
from functools import lru_cache
from zoneinfo import ZoneInfo

from autoscaling.policies.backlog.replicas import StartUps
from autoscaling.signals.signals import Signals

_DAY_S = 86_400
_KEPT_DAYS = 64
"""Days whose windows are kept: a simulated week of some specs."""


@dataclass(frozen=True, slots=True)
class ScheduledBounds:
    """The bounds of some hours; None: as without a schedule. `days`: Monday is 0. `begin_min`, `end_min`: in minutes
    after midnight by the clock; an end above 1,440 is on the next day."""

    name: str
    days: tuple[int, ...]
    begin_min: int
    end_min: int
    minimum: int | None = None
    maximum: int | None = None


@dataclass(frozen=True, slots=True)
class Window:
    """An entry from `begin_s` to before `end_s` (Unix time)."""

    begin_s: float
    end_s: float
    entry: ScheduledBounds


@dataclass(frozen=True, slots=True)
class Schedule:
    """Entries that do not overlap, by the clock of `time_zone` (a name of the IANA database)."""

    time_zone: str
    entries: tuple[ScheduledBounds, ...]

    def moved(self, more: int) -> "Schedule":
        """The same with all its bounds higher by so many replicas (lower, where negative), a minimum at least 0 and a
        maximum at least 1."""
        entries = (
            replace(
                one,
                minimum=None if one.minimum is None else max(0, one.minimum + more),
                maximum=None if one.maximum is None else max(1, one.maximum + more),
            )
            for one in self.entries
        )
        return replace(self, entries=tuple(entries))

    def between(self, from_s: float, to_s: float) -> Iterator[Window]:
        """The windows in force at any time from `from_s` to `to_s`, in their order."""
        last: Window | None = None
        for day in range(int(from_s // _DAY_S), int(to_s // _DAY_S) + 1):
            for window in _windows(self, day):
                if window != last and window.end_s > from_s and window.begin_s <= to_s:
                    last = window
                    yield window


@lru_cache(maxsize=_KEPT_DAYS)
def _windows(schedule: Schedule, day: int) -> tuple[Window, ...]:
    """Those that touch that day since 1970 (UTC), in their order. An entry is at most a day long, and no zone is more
    than a day from UTC."""
    begin_s, zone = day * _DAY_S, ZoneInfo(schedule.time_zone)
    middle = datetime.fromtimestamp(begin_s, zone).date()
    found = [
        Window(_moment(date, entry.begin_min, zone), _moment(date, entry.end_min, zone), entry)
        for date in (datetime.combine(middle, time()) + timedelta(days=days) for days in range(-2, 3))
        for entry in schedule.entries
        if date.weekday() in entry.days
    ]
    touching = (one for one in found if one.begin_s < begin_s + _DAY_S and max(one.begin_s, begin_s) < one.end_s)
    return tuple(sorted(touching, key=lambda one: one.begin_s))


def _moment(midnight: datetime, minutes: int, zone: ZoneInfo) -> float:
    """The first moment at which the zone's clock shows so many minutes after that midnight, or more."""
    shown = midnight + timedelta(minutes=minutes)
    after_s = int(shown.replace(tzinfo=zone).timestamp())
    if datetime.fromtimestamp(after_s, zone).replace(tzinfo=None) == shown:
        return float(after_s)
    before_s = int(shown.replace(tzinfo=zone, fold=1).timestamp())
    while after_s - before_s > 1:  # the clock skips that time: look for when it is set forward
        middle_s = (before_s + after_s) // 2
        if datetime.fromtimestamp(middle_s, zone).replace(tzinfo=None) < shown:
            before_s = middle_s
        else:
            after_s = middle_s
    return float(after_s)


@dataclass(frozen=True, slots=True)
class BoundsInForce:
    """`minimum_by`, `maximum_by`: the names of the entries that set them; None: no entry does."""

    minimum: int
    maximum: int
    minimum_by: str | None = None
    maximum_by: str | None = None


@dataclass(frozen=True, slots=True)
class _Span:
    """From `begin_s` on, until the next one."""

    begin_s: float
    minimum: int
    entry: ScheduledBounds | None


def _spans(schedule: Schedule, minimum: int, from_s: float, to_s: float) -> Iterator[_Span]:
    """What is in force from `from_s` to `to_s`. `minimum`: without a schedule; a lower maximum of an entry caps it."""
    until_s = from_s
    for window in schedule.between(from_s, to_s):
        if window.begin_s > until_s:
            yield _Span(until_s, minimum, None)
        entry, begin_s = window.entry, max(from_s, window.begin_s)
        capped = minimum if entry.maximum is None else min(minimum, entry.maximum)
        yield _Span(begin_s, capped if entry.minimum is None else entry.minimum, entry)
        until_s = window.end_s
    if until_s <= to_s:
        yield _Span(until_s, minimum, None)


def in_force(schedule: Schedule | None, minimum: int, maximum: int, unix_s: float) -> BoundsInForce:
    """The bounds at that moment; `minimum` and `maximum` are those without a schedule."""
    if schedule is None:
        return BoundsInForce(minimum, maximum)
    return _merged(next(_spans(schedule, minimum, unix_s, unix_s)), None, maximum)


def _merged(now: _Span, ahead: _Span | None, maximum: int) -> BoundsInForce:
    raised = now if ahead is None else ahead
    named = None if raised.entry is None else raised.entry.name
    highest, highest_by = maximum, None
    if now.entry is not None and now.entry.maximum is not None:
        highest, highest_by = now.entry.maximum, now.entry.name
    return BoundsInForce(raised.minimum, max(raised.minimum, highest), named, highest_by)


class ScheduleFollower:
    """Learns how long starts take, and anticipates by that. `start_up_s`: assumed before the first start."""

    def __init__(self, start_up_s: float) -> None:
        self._starts = StartUps(start_up_s)
        self._schedule: Schedule | None = None
        self._raised_until_s = -math.inf

    def assume_start_up(self, factor: float) -> None:
        """All starts, past and future, take `factor` times as long."""
        self._starts.assume(factor)

    def look(self, signals: Signals) -> None:
        """Facts that are new enough to learn from."""
        self._starts.look(signals)

    def bounds(
        self, schedule: Schedule, bounds: tuple[int, int], per_min: float, period_s: float, signals: Signals
    ) -> BoundsInForce:
        """`bounds`: without the schedule; at most `per_min` replicas may be added in 60 s, infinite: any number."""
        if schedule != self._schedule:
            self._schedule, self._raised_until_s = schedule, -math.inf
        minimum, maximum = bounds
        unix_s, lead_s = signals.unix_s, self._starts.expected_s + period_s
        highest = max([minimum, *(entry.minimum or 0 for entry in schedule.entries)])
        farthest_s = max(self._raised_until_s, unix_s + lead_s + _rate_s(highest - signals.applied, per_min))
        now, *later = _spans(schedule, minimum, unix_s, farthest_s)
        ahead: _Span | None = None
        for span in later:
            due_s = unix_s + lead_s + _rate_s(span.minimum - signals.applied, per_min)
            if span.begin_s <= max(self._raised_until_s, due_s) and span.minimum > (ahead or now).minimum:
                ahead = span
        if ahead is not None:
            self._raised_until_s = max(self._raised_until_s, ahead.begin_s)
        return _merged(now, ahead, maximum)


def _rate_s(more: int, per_min: float) -> float:
    """How much later than the first the last of so many replicas may be requested, at one a minute at least."""
    step = max(1, int(min(per_min, 1e9)))
    return 60.0 * max(0, math.ceil(more / step) - 1)
