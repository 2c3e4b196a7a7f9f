"""The expected demand: what arrives, and what the worksheet's day leads to expect."""

import pytest

from planning.replan.demand import Arrivals, DemandForecast, PlannedBand, PlannedDemand

MORNING = tuple(10.0 if hour >= 9 else 2.0 for hour in range(24))
CHAT = PlannedBand("m: chat: short", "m", "short", "interactive", {"eu": MORNING, "us": (4.0,) * 24})
LONG = PlannedBand("m: chat: long", "m", "long", "interactive", {"eu": tuple(rate / 2 for rate in MORNING)})
PLANNED = PlannedDemand((CHAT, LONG))
NIGHT, BEFORE_NINE = 3 * 3_600.0, 8 * 3_600.0 + 3_000.0
FLOWS = {("short", "interactive"): 0, ("long", "interactive"): 0}


def test_rates_are_counted_over_the_window_and_over_changes_of_owners() -> None:
    arrivals = Arrivals(window_s=60.0)
    arrivals.look("eu", "m", 0.0, 1, {("short", "batch"): 100})
    assert arrivals.rates("eu", "m") is None
    arrivals.look("eu", "m", 30.0, 1, {("short", "batch"): 160})
    arrivals.look("eu", "m", 60.0, 2, {("short", "batch"): 60})
    assert arrivals.rates("eu", "m") == {("short", "batch"): 2.0}
    arrivals.look("eu", "m", 90.0, 2, {("short", "batch"): 60})
    assert arrivals.rates("eu", "m") == {("short", "batch"): pytest.approx(1.0)}
    assert arrivals.rates("us", "m") is None


def test_the_worksheets_next_hours_are_expected_at_the_level_that_is_seen() -> None:
    forecast = DemandForecast(PLANNED, ahead_s=900.0)
    rates = {("eu", "m"): {("short", "interactive"): 1.0, ("long", "interactive"): 0.5}}
    assert forecast.expected(NIGHT, rates) == {(CHAT.title, "eu"): 1.0, (LONG.title, "eu"): 0.5}
    found = forecast.expected(BEFORE_NINE, rates)
    assert found == {(CHAT.title, "eu"): pytest.approx(5.0), (LONG.title, "eu"): pytest.approx(2.5)}


def test_more_than_expected_counts_as_it_comes_and_none_before_it_comes() -> None:
    forecast = DemandForecast(PLANNED, ahead_s=900.0)
    burst = {("us", "m"): {("short", "interactive"): 400.0}}
    assert forecast.expected(NIGHT, burst)[CHAT.title, "us"] == 400.0
    over = forecast.expected(NIGHT + 300.0, {("us", "m"): {("short", "interactive"): 4.0}})
    assert over[CHAT.title, "us"] <= 40.0
    later = forecast.expected(NIGHT + 14_400.0, {("us", "m"): {("short", "interactive"): 4.0}})
    assert later[CHAT.title, "us"] == pytest.approx(4.0, rel=0.05)


def test_what_the_worksheet_does_not_know_counts_as_another_band_and_is_named() -> None:
    forecast = DemandForecast(PLANNED, ahead_s=0.0)
    found = forecast.expected(NIGHT, {("us", "m"): {("long", "batch"): 3.0}, ("eu", "other"): {("x", "y"): 1.0}})
    assert found[LONG.title, "us"] == 3.0
    assert forecast.unplanned == {("m", "long", "batch")}


def test_weeks_begin_on_monday_in_the_worksheets_time_zone() -> None:
    week = tuple(float(hour) for hour in range(168))
    band = PlannedBand("m: w", "m", "short", "interactive", {"eu": week})
    planned = PlannedDemand((band,), "Europe/Berlin")
    assert planned.rate(band, "eu", 0.0) == 3 * 24 + 1  # 1970 began on a Thursday, at 01:00 in Berlin
    assert planned.highest(band, "eu", 0.0, 7_200.0) == 3 * 24 + 3
    assert planned.rate(band, "us", 0.0) == 0.0
