"""`replicas.schedule` in a spec: what it says, and what is refused by key, value and what is allowed."""

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from cluster.spec import BoundsSchedule, ReplicasSpec, ScheduleEntry, SpecError, parse_spec
from cluster.spec.schedule import DAYS

TEXT = """\
name: test
regions: [{{name: here, pools: [{{name: cpu}}]}}]
models:
  - name: demo
    source: demo
    settings: {{max_model_len: 512}}
    replicas:
      min: 2
      max: 8
      count: 2
      schedule: {schedule}
autoscaling: {{policy: {policy}}}
"""
HOURS = "{name: hours, days: [mon, tue, wed, thu, fri], begin: 8:00, end: 18:00, min: 4}"


def parsed(schedule: str, policy: str = "backlog") -> ReplicasSpec:
    return parse_spec(TEXT.format(schedule=schedule, policy=policy)).models[0].replicas


def test_times_need_no_quotes() -> None:
    """YAML 1.1 would read 18:00 as 1080."""
    schedule = parsed(f"{{time_zone: Europe/Berlin, entries: [{HOURS}]}}").schedule
    assert schedule is not None
    entry = schedule.entries[0]
    assert (entry.begin, entry.end, entry.span_min) == ("8:00", "18:00", (480, 1080))
    assert schedule.in_words() == "Europe/Berlin: hours: mon-fri 8:00-18:00, min 4"


@pytest.mark.parametrize(
    ("given_", "span", "words"),
    [
        ({}, (0, 1440), "e: every day, min 1"),
        ({"days": ["sat", "sun"]}, (0, 1440), "e: sat, sun, min 1"),
        ({"days": ["sun", "fri", "sat"]}, (0, 1440), "e: fri-sun, min 1"),
        ({"begin": "22:00", "end": "06:00"}, (1320, 1800), "e: every day 22:00-06:00, min 1"),
        ({"begin": "08:00", "end": "08:00"}, (480, 1920), "e: every day 08:00-08:00, min 1"),
        ({"begin": "18:00", "end": "00:00"}, (1080, 1440), "e: every day 18:00-00:00, min 1"),
    ],
)
def test_an_end_at_or_before_the_begin_is_on_the_next_day(
    given_: dict[str, Any], span: tuple[int, int], words: str
) -> None:
    entry = ScheduleEntry(name="e", min=1, **given_)
    assert (entry.span_min, entry.in_words()) == (span, words)


@pytest.mark.parametrize(
    ("schedule", "named"),
    [
        (f"{{time_zone: Europe/Berln, entries: [{HOURS}]}}", "time_zone = 'Europe/Berln': unknown; .* Europe/Berlin?"),
        (f"{{time_zone: ../etc/passwd, entries: [{HOURS}]}}", "time_zone = '../etc/passwd': unknown"),
        (f"{{time_zone: Europe, entries: [{HOURS}]}}", "time_zone = 'Europe': unknown"),
        (f"{{entries: [{HOURS}]}}", "schedule.time_zone: missing"),
        ("{time_zone: UTC, entries: []}", "schedule.entries = .*at least 1"),
        ("{time_zone: UTC, entries: [{name: a, begin: 25:00, min: 1}]}", "begin = '25:00': allowed: .*"),
        ("{time_zone: UTC, entries: [{name: a, begin: 8, min: 1}]}", "begin = 8: allowed: a text of the form"),
        ("{time_zone: UTC, entries: [{name: a, days: [monday], min: 1}]}", "days.0 = 'monday': allowed: mon, tue"),
        ("{time_zone: UTC, entries: [{name: a, days: [mon, mon], min: 1}]}", "a: days = mon, mon: allowed: each day"),
        ("{time_zone: UTC, entries: [{name: a}]}", "a: neither `min` nor `max` is given"),
        ("{time_zone: UTC, entries: [{name: a, min: 5, max: 4}]}", "a: min = 5, max = 4: allowed: min <= max"),
        ("{time_zone: UTC, entries: [{name: a, min: 9}]}", "schedule.entries.a: min = 9, max = 8"),
        ("{time_zone: UTC, entries: [{name: a, max: 9}]}", "schedule.entries.a: min = 2, max = 9"),
        ("{time_zone: UTC, entries: [{name: a, max: 1}]}", "schedule.entries.a: min = 2, max = 1"),
        (f"{{time_zone: UTC, entries: [{HOURS}, {HOURS}]}}", "'hours' appears twice"),
        (
            f"{{time_zone: UTC, entries: [{HOURS}, {{name: night, begin: '22:00', end: '08:01', min: 1}}]}}",
            "'hours' and 'night' overlap, at mon 08:00",
        ),
        (
            "{time_zone: UTC, entries: [{name: a, days: [sun], begin: '20:00', end: '02:00', min: 1}, "
            "{name: b, days: [mon], min: 1}]}",
            "'a' and 'b' overlap, at mon 00:00",
        ),
    ],
)
def test_what_cannot_be_is_named(schedule: str, named: str) -> None:
    with pytest.raises(SpecError, match=named):
        parsed(schedule)


def test_a_number_that_does_not_change_has_no_bounds() -> None:
    with pytest.raises(SpecError, match=r"demo.replicas.schedule: .* other than 'fixed'"):
        parsed(f"{{time_zone: UTC, entries: [{HOURS}]}}", policy="fixed")


def test_a_model_that_a_schedule_may_take_to_zero_is_ready_without_replicas() -> None:
    text = TEXT.format(schedule="{time_zone: UTC, entries: [{name: a, days: [sun], min: 0}]}", policy="backlog")
    spec = parse_spec(text)
    assert (spec.min_replicas(spec.models[0]), spec.max_replicas(spec.models[0])) == (0, 8)


@st.composite
def entries(draw: st.DrawFn, name: str) -> dict[str, Any]:
    days = draw(st.lists(st.sampled_from(DAYS), min_size=1, unique=True))
    begin, end = (draw(st.integers(0, 23)) for _ in range(2))
    return {"name": name, "days": days, "begin": f"{begin}:00", "end": f"{end}:00", "min": 1}


@given(entries("a"), entries("b"))
def test_entries_overlap_where_an_hour_of_the_week_is_in_both(one: dict[str, Any], other: dict[str, Any]) -> None:
    def hours(entry: dict[str, Any]) -> set[int]:
        begin, end = (int(entry[key].split(":")[0]) for key in ("begin", "end"))
        length = (end - begin) % 24 or 24
        return {(24 * DAYS.index(day) + hour) % 168 for day in entry["days"] for hour in range(begin, begin + length)}

    shared = hours(one) & hours(other)
    try:
        BoundsSchedule(time_zone="UTC", entries=(ScheduleEntry(**one), ScheduleEntry(**other)))
    except ValidationError as error:
        at = re.search(r"overlap, at (\w+) (\d+):00", str(error))
        assert at is not None
        assert 24 * DAYS.index(at[1]) + int(at[2]) in shared  # type: ignore[arg-type]
    else:
        assert not shared
