from dataclasses import replace

import pytest

from deployments.traffic.counts import Stream, Stretches
from planning.drift.comparison import ALL_REGIONS, HOLD_S, Comparison, Drift, compare, incidents
from planning.drift.expected import Expected, Tolerance
from planning.drift.measures import Direction, DriftQuantity
from tests.planning.drift.drawn import CHAT, MONDAY_S, Traffic, sheet_of, then

CALM = Traffic()
SHEET = sheet_of(CALM)
BEFORE_MIN = 90


def shifted(after: Traffic, minutes: int, seed: int, before: Traffic = CALM) -> Comparison:
    recorded = then(before.draw(BEFORE_MIN, seed), after.draw(minutes, seed + 1_000, BEFORE_MIN))
    return compare(sheet_of(before), recorded)


def minutes_until(found: Comparison, quantity: DriftQuantity, direction: Direction) -> float:
    """From the shift to the alarm."""
    return next(
        (drift.raised_unix_s - MONDAY_S) / 60 - BEFORE_MIN
        for drift in found.drifts
        if (drift.quantity, drift.direction) == (quantity, direction)
    )


@pytest.mark.parametrize("seed", range(3))
def test_prompts_that_double_are_named_within_ten_minutes(seed: int) -> None:
    found = shifted(CALM.scaled(prompt=2), 12, seed)
    assert 0 < minutes_until(found, DriftQuantity.PROMPT_TOKENS, Direction.ABOVE) <= 10
    assert {drift.quantity for drift in found.open} <= {DriftQuantity.PROMPT_TOKENS, DriftQuantity.LONG_PROMPTS}
    drift = next(drift for drift in found.open if drift.quantity is DriftQuantity.PROMPT_TOKENS)
    assert drift.stream == CHAT
    assert drift.ratio == pytest.approx(2, rel=0.15)
    assert abs(drift.since_unix_s - MONDAY_S - 60 * BEFORE_MIN) <= 180


def test_prompts_that_are_double_from_the_start() -> None:
    found = compare(SHEET, CALM.scaled(prompt=2).draw(10, 7))
    assert DriftQuantity.PROMPT_TOKENS in {drift.quantity for drift in found.open}


@pytest.mark.parametrize(
    ("after", "quantity", "direction", "within_min"),
    [
        (CALM.scaled(per_s=1.5), DriftQuantity.RATE, Direction.ABOVE, 40),
        (CALM.scaled(per_s=0.4), DriftQuantity.RATE, Direction.BELOW, 25),
        (CALM.scaled(output=1.5), DriftQuantity.OUTPUT_TOKENS, Direction.ABOVE, 25),
        (CALM.scaled(output=0.5), DriftQuantity.OUTPUT_TOKENS, Direction.BELOW, 15),
        (CALM.scaled(prefix_share=0), DriftQuantity.PREFIX_SHARE, Direction.BELOW, 12),
    ],
)
def test_other_shifts_are_named(after: Traffic, quantity: DriftQuantity, direction: Direction, within_min: int) -> None:
    assert 0 < minutes_until(shifted(after, within_min + 5, 3), quantity, direction) <= within_min


@pytest.mark.whole
@pytest.mark.parametrize("traffic", [CALM, Traffic(per_s=0.3), Traffic(per_s=4.0, cluster=8)], ids=str)
def test_ten_hours_drawn_from_the_worksheet_raise_no_alarm(traffic: Traffic) -> None:
    sheet = sheet_of(traffic)
    assert [compare(sheet, traffic.draw(600, seed)).drifts for seed in range(6)] == [()] * 6


@pytest.mark.long
@pytest.mark.parametrize("traffic", [CALM, Traffic(per_s=0.5, cluster=4)], ids=str)
def test_ten_hours_of_three_hundred_seeds(traffic: Traffic) -> None:
    sheet = sheet_of(traffic)
    assert [seed for seed in range(300) if compare(sheet, traffic.draw(600, seed)).drifts] == []


@pytest.mark.long
def test_ten_minutes_of_doubled_prompts_of_two_hundred_seeds() -> None:
    late = [seed for seed in range(200) if not compare(SHEET, CALM.scaled(prompt=2).draw(10, seed)).open]
    assert late == []


LOW_RATES = [(0.5, 0.8), (0.3, 0.7)]
"""Requests/s, and the share of runs that name doubled prompts within ten minutes (docs/drift.md has more)."""


@pytest.mark.long
@pytest.mark.parametrize(("per_s", "share"), LOW_RATES)
def test_doubled_prompts_at_low_rates(per_s: float, share: float) -> None:
    """After three hours as the worksheet says."""
    calm = Traffic(per_s=per_s)
    sheet = sheet_of(calm)
    named = 0
    for seed in range(100):
        recorded = then(calm.draw(180, seed), calm.scaled(prompt=2).draw(10, seed + 1_000, 180))
        named += DriftQuantity.PROMPT_TOKENS in {drift.quantity for drift in compare(sheet, recorded).open}
    assert named >= 100 * share


def regional(traffic: Traffic, minutes: int, seed: int, regions: int, from_minute: int = 0) -> Stretches:
    """The same traffic in each of so many regions."""
    found = Stretches()
    for number in range(regions):
        drawn = traffic.draw(minutes, 100 * seed + number, from_minute)
        for (period, begin, stream), counts in list(drawn.counts.items()):
            found.of(period, begin, replace(stream, region=f"r{number}")).merge(counts)
        found.seconds = drawn.seconds
    return found


def regional_sheet(traffic: Traffic, regions: int) -> Expected:
    (stream,) = sheet_of(traffic).streams
    names = [replace(stream.stream, region=f"r{number}") for number in range(regions)]
    return Expected(tuple(replace(stream, stream=name) for name in names))


def test_what_changes_in_all_regions_is_known_sooner_than_in_each() -> None:
    calm = Traffic(per_s=0.15)
    recorded = then(regional(calm, 120, 1, 4), regional(calm.scaled(prompt=2), 30, 2, 4, 120))
    found = compare(regional_sheet(calm, 4), recorded)
    named = [drift for drift in found.drifts if drift.quantity is DriftQuantity.PROMPT_TOKENS]
    assert named[0].stream.region == ALL_REGIONS
    assert named[0].raised_unix_s - MONDAY_S <= (120 + 12) * 60
    assert named[0].ratio == pytest.approx(2, rel=0.25)
    assert {figure.stream.region for figure in found.figures} == {"r0", "r1", "r2", "r3"}
    assert len(found.incidents) == 1


@pytest.mark.whole
def test_ten_hours_in_three_regions_raise_no_alarm() -> None:
    calm = Traffic(per_s=0.2)
    sheet = regional_sheet(calm, 3)
    assert [compare(sheet, regional(calm, 600, seed, 3)).drifts for seed in range(4)] == [()] * 4


def test_prompts_that_change_in_one_region_alone_are_named_there() -> None:
    calm = Traffic(per_s=1.0)
    recorded = regional(calm, 60, 1, 3)
    for (period, begin, stream), counts in list(calm.scaled(prompt=3).draw(60, 9).counts.items()):
        recorded.counts[period, begin, replace(stream, region="r1")] = counts
    named = compare(regional_sheet(calm, 3), recorded).open
    assert replace(CHAT, region="r1") in {drift.stream for drift in named}


def drift_of(model: str, raised_s: int, ended_s: int | None) -> Drift:
    stream = Stream(model, "interactive", "eu")
    return Drift(stream, DriftQuantity.RATE, Direction.ABOVE, raised_s - 60, raised_s, ended_s, 1.0, 2.0)


def test_drifts_of_a_model_at_one_time_are_one_incident() -> None:
    first, second, later = drift_of("a", 0, 900), drift_of("a", 600, 1_800), drift_of("a", 1_800 + HOLD_S + 1, None)
    other = drift_of("b", 700, None)
    found = incidents([second, later, other, first])
    assert [one.drifts for one in found] == [(first, second), (other,), (later,)]
    assert [(one.raised_unix_s, one.ended_unix_s) for one in found] == [(0, 1_800), (700, None), (5_401, None)]
    assert len(incidents([first, drift_of("a", 900 + HOLD_S, None), drift_of("a", 90_000, None)])) == 1
    assert incidents([]) == ()


def test_an_alarm_ends_when_traffic_is_back() -> None:
    recorded = then(CALM.scaled(prompt=2).draw(30, 1), CALM.draw(90, 2, 30))
    found = compare(SHEET, recorded)
    assert found.open == ()
    drift = next(drift for drift in found.drifts if drift.quantity is DriftQuantity.PROMPT_TOKENS)
    assert drift.ended_unix_s is not None
    assert 30 * 60 < drift.ended_unix_s - MONDAY_S <= 65 * 60


def test_a_gateway_that_was_down_is_no_missing_traffic() -> None:
    found = compare(SHEET, then(CALM.draw(60, 1), CALM.draw(60, 2, 240)))
    assert found.drifts == ()
    assert found.watched_s == 120 * 60


def test_a_burst_and_a_pause_are_no_drift() -> None:
    burst = then(CALM.draw(60, 1), CALM.scaled(per_s=10).draw(5, 2, 60))
    pause = then(burst, Traffic(per_s=0.0001).draw(8, 3, 65))
    assert compare(SHEET, then(pause, CALM.draw(60, 4, 73))).drifts == ()


def test_what_the_tolerance_allows_is_no_drift() -> None:
    recorded = CALM.scaled(prompt=1.5).draw(120, 1)
    assert compare(SHEET, recorded).open
    assert compare(sheet_of(CALM, Tolerance(lengths=0.6)), recorded).open == ()


def test_streams_that_one_of_them_does_not_have() -> None:
    recorded = CALM.draw(30, 1)
    other = Stream("demo", "batch", "eu")
    for (period, begin, _), counts in list(CALM.draw(30, 2).counts.items()):
        recorded.of(period, begin, other).merge(counts)
    found = compare(Expected(()), recorded)
    assert [stream for stream, _ in found.unplanned] == [other, CHAT]
    assert found.unplanned[0][1] == pytest.approx(2, rel=0.1)
    found = compare(SHEET, recorded)
    assert [stream for stream, _ in found.unplanned] == [other]
    quiet = Stretches()
    quiet.watch(MONDAY_S, MONDAY_S + 1_800.0)
    assert compare(SHEET, quiet).unseen == (CHAT,)


def test_nothing_recorded() -> None:
    with pytest.raises(ValueError, match="no minute was recorded"):
        compare(SHEET, Stretches())
