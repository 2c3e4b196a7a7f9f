"""Bounds on the number of replicas by time of day and week, so that replicas are warm before business hours."""

from difflib import get_close_matches
from itertools import combinations
from typing import Annotated, Literal
from zoneinfo import ZoneInfo, available_timezones

from pydantic import Field, field_validator, model_validator

from cluster.spec.base import Name, Section, check_unique

Day = Literal["mon", "tue", "wed", "thu", "fri", "sat", "sun"]
DAYS: tuple[Day, ...] = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
_DAY_MIN = 24 * 60
_WEEK_MIN = 7 * _DAY_MIN

_CLOCK = "([01]?[0-9]|2[0-3]):[0-5][0-9]"
BeginTime = Annotated[str, Field(pattern=f"^{_CLOCK}$")]
EndTime = Annotated[str, Field(pattern=f"^({_CLOCK}|24:00)$")]


class ScheduleEntry(Section):
    """`min` and `max` on these `days` from `begin` to `end`, as the clock of the schedule's time zone shows it; what is
    not given is as in `replicas`.

    An `end` at or before `begin` is on the next day. The replicas of `min` are ready at `begin`: they start earlier, by
    the start-up time. `max` holds from `begin` on.
    """

    name: Name
    days: Annotated[tuple[Day, ...], Field(min_length=1)] = DAYS
    begin: BeginTime = "00:00"
    end: EndTime = "24:00"
    min: Annotated[int, Field(ge=0, le=10_000)] | None = None
    max: Annotated[int, Field(ge=1, le=10_000)] | None = None

    @model_validator(mode="after")
    def _says_something(self) -> "ScheduleEntry":
        if self.min is self.max is None:
            raise ValueError(f"{self.name}: neither `min` nor `max` is given; needed: one of them")
        if self.min is not None and self.max is not None and self.min > self.max:
            raise ValueError(f"{self.name}: min = {self.min}, max = {self.max}: allowed: min <= max")
        if len(set(self.days)) < len(self.days):
            raise ValueError(f"{self.name}: days = {', '.join(self.days)}: allowed: each day once")
        return self

    @property
    def weekdays(self) -> tuple[int, ...]:
        """The days as numbers, Monday is 0."""
        return tuple(DAYS.index(day) for day in self.days)

    @property
    def span_min(self) -> tuple[int, int]:
        """Begin and end in minutes after the midnight with which a day begins; more than a day's: the day after."""
        begin, end = _minutes(self.begin), _minutes(self.end)
        return begin, end if end > begin else end + _DAY_MIN

    def in_words(self) -> str:
        """As `raylane spec check` prints it."""
        bounds = [f"{name} {value}" for name, value in (("min", self.min), ("max", self.max)) if value is not None]
        hours = "" if self.span_min == (0, _DAY_MIN) else f" {self.begin}-{self.end}"
        return f"{self.name}: {_day_words(self.weekdays)}{hours}, {', '.join(bounds)}"


class BoundsSchedule(Section):
    """Other bounds than those of `replicas` at some times of the week. `time_zone`: a name of the IANA database, as
    `Europe/Berlin`; daylight saving is followed. Entries must not overlap."""

    time_zone: str
    entries: Annotated[tuple[ScheduleEntry, ...], Field(min_length=1)]

    @field_validator("time_zone")
    @classmethod
    def _is_known(cls, name: str) -> str:
        try:
            ZoneInfo(name)
        except (KeyError, ValueError, OSError) as error:  # unknown; a path out of the database; a folder of it
            known = sorted(available_timezones())
            if not known:
                raise ValueError("this machine has no time zone database; install the package tzdata") from error
            near = get_close_matches(name, known, 1)
            meant = f"; did you mean {near[0]}?" if near else ""
            raise ValueError(f"unknown; allowed: a name of the IANA database, as Europe/Berlin{meant}") from error
        return name

    @model_validator(mode="after")
    def _are_apart(self) -> "BoundsSchedule":
        check_unique("entries", (entry.name for entry in self.entries))
        for one, other in combinations(self.entries, 2):
            if (at_min := _meet(one, other)) is not None:
                day, minute = divmod(at_min, _DAY_MIN)
                at = f"{DAYS[day]} {minute // 60:02}:{minute % 60:02}"
                raise ValueError(
                    f"entries: {one.name!r} and {other.name!r} overlap, at {at}; allowed: entries that do not overlap"
                )
        return self

    def in_words(self) -> str:
        """As the commands print it."""
        return f"{self.time_zone}: {'; '.join(entry.in_words() for entry in self.entries)}"


def _minutes(clock: str) -> int:
    hours, minutes = clock.split(":")
    return 60 * int(hours) + int(minutes)


def _meet(one: ScheduleEntry, other: ScheduleEntry) -> int | None:
    """The first minute of the week in which both hold; None: they do not overlap."""
    (begin, end), (other_begin, other_end) = one.span_min, other.span_min
    for day in one.weekdays:
        for other_day in other.weekdays:
            for week in (-_WEEK_MIN, 0, _WEEK_MIN):
                later = max(day * _DAY_MIN + begin, other_day * _DAY_MIN + other_begin + week)
                if later < min(day * _DAY_MIN + end, other_day * _DAY_MIN + other_end + week):
                    return later % _WEEK_MIN
    return None


def _day_words(days: tuple[int, ...]) -> str:
    ordered = sorted(days)
    if len(ordered) == len(DAYS):
        return "every day"
    if len(ordered) > 2 and ordered[-1] - ordered[0] == len(ordered) - 1:
        return f"{DAYS[ordered[0]]}-{DAYS[ordered[-1]]}"
    return ", ".join(DAYS[day] for day in ordered)
