"""Bounds by time of day and week: by the clock on the wall, over changes of that clock, and in time for what must be
ready."""

from dataclasses import replace
from datetime import datetime, timedelta
from itertools import pairwise
from zoneinfo import ZoneInfo

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from autoscaling.scaler.autoscaler import Autoscaler
from autoscaling.scaler.decision import Bounds, Limit, ScalingDecision
from autoscaling.scaler.schedule import Schedule, ScheduledBounds, ScheduleFollower
from autoscaling.signals.signals import NextStart
from deployments.cell.control import Control, ControlKind
from tests.autoscaling.scaler.moments import moment
from tests.autoscaling.scaler.test_autoscaler import Says

WEEK = tuple(range(7))
OFFICE = ScheduledBounds("office", (0, 1, 2, 3, 4), 8 * 60, 18 * 60, 4)
WEEKEND = ScheduledBounds("weekend", (5, 6), 0, 24 * 60, None, 2)
BERLIN = Schedule("Europe/Berlin", (OFFICE, WEEKEND))
ZONES = ("UTC", "Europe/Berlin", "America/New_York", "Asia/Kolkata", "Australia/Lord_Howe", "America/Santiago")


def unix(text: str, zone: str = "Europe/Berlin") -> float:
    """Of a time that is shown, with an offset where it is shown twice."""
    at = datetime.fromisoformat(text)
    return (at if at.tzinfo else at.replace(tzinfo=ZoneInfo(zone))).timestamp()


def minimum_at(schedule: Schedule, unix_s: float) -> tuple[int, str | None]:
    found = Bounds(1, 10, schedule=schedule).at(unix_s)
    return found.minimum, found.minimum_by


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2026-11-23T07:59:59", (1, 10, None, None)),  # a Monday
        ("2026-11-23T08:00:00", (4, 10, "office", None)),
        ("2026-11-23T17:59:59", (4, 10, "office", None)),
        ("2026-11-23T18:00:00", (1, 10, None, None)),
        ("2026-11-28T00:00:00", (1, 2, "weekend", "weekend")),
        ("2026-11-29T23:59:59", (1, 2, "weekend", "weekend")),
        ("2026-11-30T00:00:00", (1, 10, None, None)),
        ("2026-07-20T08:00:00", (4, 10, "office", None)),  # in summer time
    ],
)
def test_the_clock_of_the_zone_decides(text: str, expected: tuple[int, int, str | None, str | None]) -> None:
    found = Bounds(1, 10, schedule=BERLIN).at(unix(text))
    assert (found.minimum, found.maximum, found.minimum_by, found.maximum_by) == expected


def test_an_entry_over_midnight_belongs_to_the_day_on_which_it_begins() -> None:
    night = Schedule("Europe/Berlin", (ScheduledBounds("night", (4,), 22 * 60, 30 * 60, 3),))
    held = {hour: minimum_at(night, unix(f"2026-11-27T{hour}:30"))[0] for hour in ("05", "21", "22")}
    assert held == {"05": 1, "21": 1, "22": 3}
    assert [minimum_at(night, unix(f"2026-11-28T{at}"))[0] for at in ("05:59", "06:00", "22:30")] == [3, 1, 1]


def test_an_hour_that_the_clock_skips() -> None:
    """In Berlin 02:00 to 03:00 does not exist on 29 March 2026: what begins within it begins when the clock is set."""
    early = Schedule("Europe/Berlin", (ScheduledBounds("early", WEEK, 150, 360, 3),))
    assert minimum_at(early, unix("2026-03-29T01:59:59+01:00"))[0] == 1
    assert minimum_at(early, unix("2026-03-29T03:00:00+02:00"))[0] == 3
    assert minimum_at(early, unix("2026-03-29T06:00:00+02:00"))[0] == 1
    within = Schedule("Europe/Berlin", (ScheduledBounds("within", WEEK, 130, 170, 3),))
    assert list(within.between(unix("2026-03-29T00:00"), unix("2026-03-29T12:00"))) == []


def test_an_hour_that_the_clock_shows_twice() -> None:
    """In Berlin 02:00 to 03:00 comes twice on 25 October 2026: begin and end are at the first time."""
    early = Schedule("Europe/Berlin", (ScheduledBounds("early", WEEK, 150, 360, 3),))
    first, second = unix("2026-10-25T02:30:00+02:00"), unix("2026-10-25T02:30:00+01:00")
    assert [minimum_at(early, at)[0] for at in (first - 1, first, second - 1, second)] == [1, 3, 3, 3]
    until = Schedule("Europe/Berlin", (ScheduledBounds("until", WEEK, 0, 150, 3),))
    assert [minimum_at(until, at)[0] for at in (first - 1, first, second - 1, second)] == [3, 1, 1, 1]


def test_a_zone_whose_clock_is_set_at_midnight() -> None:
    """In Santiago 5 September 2026 ends at 24:00, and the next day begins at 01:00."""
    sunday = Schedule("America/Santiago", (ScheduledBounds("sunday", (6,), 0, 24 * 60, 3),))
    (window,) = sunday.between(unix("2026-09-06T00:00Z"), unix("2026-09-07T12:00Z"))
    assert window.begin_s == unix("2026-09-06T01:00", "America/Santiago")
    assert window.end_s - window.begin_s == 23 * 3600


moments_of_years = st.integers(int(unix("2025-01-01T00:00Z")), int(unix("2028-12-31T00:00Z")))
minutes = st.integers(0, 1439)


@st.composite
def schedules(draw: st.DrawFn) -> Schedule:
    """Of up to three entries a day that follow each other, all on some days."""
    cuts = sorted(draw(st.lists(minutes, min_size=2, max_size=4, unique=True)))
    days = tuple(sorted(draw(st.sets(st.integers(0, 6), min_size=1))))
    spans = pairwise(cuts)
    found = [
        ScheduledBounds(f"e{number}", days, begin, end, draw(st.integers(0, 8)))
        for number, (begin, end) in enumerate(spans)
    ]
    return Schedule(draw(st.sampled_from(ZONES)), tuple(found))


@pytest.mark.whole
@given(schedules(), moments_of_years)
def test_without_a_change_of_the_clock_the_shown_time_decides(schedule: Schedule, unix_s: int) -> None:
    zone = ZoneInfo(schedule.time_zone)
    shown = datetime.fromtimestamp(unix_s, zone)
    around = [datetime.fromtimestamp(unix_s + more, zone).utcoffset() for more in (-7_200, 0, 7_200)]
    assume(len(set(around)) == 1)
    minute = 60 * shown.hour + shown.minute
    named = [
        one.name for one in schedule.entries if shown.weekday() in one.days and one.begin_min <= minute < one.end_min
    ]
    assert minimum_at(schedule, unix_s)[1] == (named[0] if named else None)


@given(st.sampled_from(ZONES), minutes, minutes, moments_of_years)
def test_entries_that_follow_each_other_leave_no_gap_and_do_not_overlap(
    zone: str, one: int, other: int, unix_s: int
) -> None:
    assume(one != other)
    first, second = min(one, other), max(one, other)
    whole = Schedule(
        zone, (ScheduledBounds("a", WEEK, first, second, 2), ScheduledBounds("b", WEEK, second, first + 1440, 3))
    )
    windows = list(whole.between(unix_s, unix_s + 4 * 86_400))
    assert windows[0].begin_s <= unix_s < windows[0].end_s
    assert all(before.end_s == after.begin_s for before, after in pairwise(windows))
    assert windows[-1].end_s > unix_s + 4 * 86_400


@pytest.mark.whole
@given(schedules(), moments_of_years, st.integers(0, 7_200), st.integers(0, 3))
def test_what_a_time_needs_is_requested_a_start_up_time_before_and_no_earlier(
    schedule: Schedule, unix_s: int, start_up_s: int, base: int
) -> None:
    found = ScheduleFollower(start_up_s).bounds(
        schedule, (base, 10), float("inf"), 1.0, replace(moment(), unix_s=float(unix_s), applied=2)
    )
    bounds = Bounds(base, 10, schedule=schedule)
    ahead_s = [*range(0, start_up_s + 1, 30), start_up_s, start_up_s + 1]
    begins = [int(one.begin_s) - unix_s for one in schedule.between(unix_s, unix_s + start_up_s + 1)]
    ends = [int(one.end_s) - unix_s for one in schedule.between(unix_s, unix_s + start_up_s + 1)]
    within = [more for more in (*ahead_s, *begins, *ends) if 0 <= more <= start_up_s + 1]
    assert found.minimum == max(bounds.at(unix_s + more).minimum for more in within)
    assert found.maximum == max(found.minimum, bounds.at(unix_s).maximum)


@given(st.lists(st.integers(0, 3_600), min_size=2, max_size=20))
def test_what_was_raised_stays_until_its_time_though_starts_turn_out_quicker(starts_s: list[int]) -> None:
    following, begins_s, raised = ScheduleFollower(600.0), unix("2026-11-23T08:00"), False
    for number, start_s in enumerate(starts_s):
        at_s = begins_s - 1_800.0 + 1_800.0 * number / len(starts_s)
        signals = replace(
            moment(), at_s=at_s, unix_s=at_s, applied=1, next_start=NextStart((("load", float(start_s)),))
        )
        following.look(signals)
        now = following.bounds(BERLIN, (1, 10), float("inf"), 1.0, signals).minimum
        assert now == 4 or not raised
        raised = now == 4


def decided(wanted: int, at: str, applied: int = 1, *controls: Control, **bounds: float) -> ScalingDecision:
    limits = replace(Bounds(1, 8, schedule=BERLIN), **bounds)  # type: ignore[arg-type]
    signals = replace(moment(ready=applied), unix_s=unix(at))
    return Autoscaler(Says(wanted), limits, 300.0).decide(signals, controls)


@pytest.mark.parametrize(
    ("wanted", "at", "requested", "limit", "entry"),
    [
        (1, "2026-11-23T07:54:58", 1, None, None),
        (1, "2026-11-23T07:55:00", 4, Limit.SCHEDULED_MIN, "office"),
        (9, "2026-11-23T12:00:00", 8, Limit.MAX_REPLICAS, None),
        (6, "2026-11-28T12:00:00", 2, Limit.SCHEDULED_MAX, "weekend"),
        (0, "2026-11-28T12:00:00", 1, Limit.SCHEDULED_MIN, "weekend"),
        (0, "2026-11-23T20:00:00", 1, Limit.MIN_REPLICAS, None),
    ],
)
def test_a_decision_names_the_entry(
    wanted: int, at: str, requested: int, limit: Limit | None, entry: str | None
) -> None:
    decision = decided(wanted, at)
    assert (decision.requested, decision.limit, decision.scheduled) == (requested, limit, entry)


def test_a_rate_limit_begins_as_much_earlier_as_it_takes() -> None:
    """Three more at two a minute: the third one a minute after the first two."""
    assert decided(1, "2026-11-23T07:53:58", up_per_min=2.0).requested == 1
    begun = decided(1, "2026-11-23T07:53:59", up_per_min=2.0)
    assert (begun.requested, begun.limit, begun.scheduled) == (3, Limit.UP_RATE, "office")


def test_operators_and_missing_room_come_after_the_schedule() -> None:
    pin = Control(ControlKind.PIN, 2, until_unix_s=1e10)
    assert decided(1, "2026-11-23T12:00:00", 1, pin).limit is Limit.PINNED
    signals = replace(moment(ready=1, schedulable=2), unix_s=unix("2026-11-23T12:00"))
    limits = Bounds(1, 8, schedule=BERLIN)
    assert Autoscaler(Says(1), limits).decide(signals).limit is Limit.UNSCHEDULABLE


@pytest.mark.parametrize("zone", ZONES)
def test_a_minute_of_every_day_of_a_year_is_quick_and_right(zone: str) -> None:
    """09:00 exists on each day in each of these zones."""
    schedule = Schedule(zone, (ScheduledBounds("nine", WEEK, 540, 541, 3),))
    day = datetime(2026, 1, 1, 9, tzinfo=ZoneInfo(zone))
    for _ in range(365):
        assert minimum_at(schedule, day.timestamp()) == (3, "nine")
        assert minimum_at(schedule, day.timestamp() + 60)[0] == 1
        day += timedelta(days=1)


def test_a_moved_schedule_has_all_its_bounds_higher_or_lower() -> None:
    """As `raylane simulate` asks with one replica more and one fewer."""
    more, fewer = BERLIN.moved(1), BERLIN.moved(-5)
    assert [(one.minimum, one.maximum) for one in more.entries] == [(5, None), (None, 3)]
    assert [(one.minimum, one.maximum) for one in fewer.entries] == [(0, None), (None, 1)]
