import pytest

from deployments.traffic.counts import Stream, Stretches
from planning.drift.comparison import Comparison, compare
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
