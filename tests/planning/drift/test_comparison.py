"""Which figures have left a worksheet, over all hours and in the last one."""

from dataclasses import replace

import pytest

from deployments.traffic.counts import Stream
from planning.drift.comparison import Comparison, DriftQuantity, compare
from tests.planning.drift.drawn import CHAT, MONDAY_S, Traffic, sheet_of, then

EVEN = Traffic()


def off(found: Comparison) -> dict[DriftQuantity, bool]:
    """By figure that is off, whether it is above what is expected."""
    return {one.quantity: one.off.observed > one.off.expected for one in found.off if one.off}


@pytest.mark.whole
@pytest.mark.parametrize("seed", range(5))
def test_traffic_as_the_worksheet_says(seed: int) -> None:
    found = compare(sheet_of(EVEN), EVEN.draw(6 * 60, seed))
    assert off(found) == {}
    assert {one.quantity for one in found.figures} == set(DriftQuantity)
    assert all(len(one.hours) == 6 for one in found.figures)
    assert (found.from_unix_s, found.to_unix_s, found.watched_s) == (MONDAY_S, MONDAY_S + 6 * 3_600, 6 * 3_600)


@pytest.mark.whole
@pytest.mark.parametrize(
    ("quantity", "changed", "above"),
    [
        (DriftQuantity.RATE, replace(EVEN, per_s=4.0), True),
        (DriftQuantity.RATE, replace(EVEN, per_s=1.0), False),
        (DriftQuantity.PROMPT_TOKENS, replace(EVEN, prompt=2_000), True),
        (DriftQuantity.OUTPUT_TOKENS, replace(EVEN, output=125), False),
        (DriftQuantity.PREFIX_SHARE, replace(EVEN, prefix_share=0.1), False),
    ],
)
def test_a_figure_that_changed_in_the_last_hour_is_off(quantity: DriftQuantity, changed: Traffic, above: bool) -> None:
    found = compare(sheet_of(EVEN), then(EVEN.draw(600, 1), changed.draw(60, 2, from_minute=600)))
    assert off(found) == {quantity: above}
    (figure,) = found.off
    assert not figure.whole.is_off
    assert figure.off is figure.hours[-1]


def test_a_figure_that_is_off_all_along_is_off_over_all_hours() -> None:
    (figure,) = compare(sheet_of(EVEN), replace(EVEN, prompt=1_500).draw(300, 3)).off
    assert figure.whole.is_off
    assert figure.whole.observed > figure.whole.expected
    assert figure.whole.ratio == pytest.approx(1.5, rel=0.1)


def test_few_requests_prove_nothing_and_the_tolerance_allows_a_little() -> None:
    few = replace(EVEN, per_s=0.0005)
    assert off(compare(sheet_of(few), replace(few, per_s=0.001, prompt=2_000).draw(60, 4))) == {}
    assert off(compare(sheet_of(EVEN), replace(EVEN, per_s=2.3, prompt=1_120).draw(300, 5))) == {}


def test_rates_between_now_and_after_the_growth_are_as_expected() -> None:
    grown = replace(EVEN, per_s=3.0)
    assert off(compare(sheet_of(EVEN, growth=1.5), grown.draw(120, 6))) == {}
    assert off(compare(sheet_of(EVEN), grown.draw(120, 6))) == {DriftQuantity.RATE: True}


def test_each_hour_has_its_own_expectation_in_its_time_zone() -> None:
    hourly = (2.0,) * 12 + (8.0,) * 12
    recorded = then(EVEN.draw(60, 7, from_minute=60), replace(EVEN, per_s=8.0).draw(60, 8, from_minute=12 * 60))
    assert off(compare(sheet_of(EVEN, hourly=hourly), recorded)) == {}
    found = compare(sheet_of(EVEN, hourly=hourly, time_zone="Asia/Tokyo"), recorded)
    (rate,) = [one for one in found.figures if one.quantity is DriftQuantity.RATE]
    assert [one.expected for one in rate.hours] == [2.0, 8.0], "10:00 and 21:00 there"


def test_an_hour_is_one_of_its_time_zone() -> None:
    """In Kolkata it is 5:30 at midnight UTC, and noon at 6:30."""
    hourly = (2.0,) * 12 + (8.0,) * 12
    recorded = then(EVEN.draw(390, 7), replace(EVEN, per_s=8.0).draw(30, 8, from_minute=390))
    found = compare(sheet_of(EVEN, hourly=hourly, time_zone="Asia/Kolkata"), recorded)
    assert off(found) == {}
    assert [one.begin_unix_s - MONDAY_S for one in found.figures[0].hours][:2] == [-1_800, 1_800]


def test_traffic_that_nobody_planned_and_streams_without_any() -> None:
    recorded, other = EVEN.draw(60, 9), Stream("demo", "batch", "eu")
    for (period, begin, _), counts in list(recorded.counts.items()):
        recorded.of(period, begin, other).merge(counts)
    found = compare(sheet_of(EVEN), recorded)
    assert [stream for stream, _ in found.unplanned] == [other]
    assert found.unplanned[0][1] == pytest.approx(2.0, rel=0.1)
    silent = compare(sheet_of(EVEN, stream=other), EVEN.draw(60, 9))
    assert silent.unseen == (other,)
    assert [stream for stream, _ in silent.unplanned] == [CHAT]


def test_a_stream_that_stopped_is_below_its_rate() -> None:
    recorded = EVEN.draw(60, 10)
    recorded.watch(MONDAY_S + 3_600, MONDAY_S + 7_200)
    recorded.counts.pop(next(iter(recorded.counts)))
    found = compare(sheet_of(EVEN), recorded)
    assert off(found)[DriftQuantity.RATE] is False
