"""Histories of arrivals: from requests and signals; gaps are filled, unknown steps stay unknown."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoscaling.forecast.history import A_DAY, STEP_S, History, Recorder, history_of_requests, known
from tests.autoscaling.forecast.made import MONDAY, history, recorded


def test_a_negative_rate_is_refused() -> None:
    with pytest.raises(ValueError, match=r"rates: -1.0 .*allowed: 0 or more"):
        History(0, (-1.0,))


def test_requests_add_up_to_rates_and_parts_of_steps_are_left_out() -> None:
    at_s = MONDAY + np.array([30.0, 600.0, 700.0, 1_300.0, 1_805.0])
    found = history_of_requests(at_s, np.array([9.0, 60.0, 60.0, 600.0, 5.0]))
    assert found == History(int(MONDAY // STEP_S) + 1, (0.2, 1.0))
    assert history_of_requests(at_s, np.ones(5), MONDAY + 2_400).rates == (2 / 600, 1 / 600, 1 / 600)
    assert history_of_requests(at_s[:1], np.ones(1)) == History(0, ())


def test_gaps_are_filled_by_the_day_before_else_the_day_after() -> None:
    rates = recorded(3 * A_DAY)
    torn = rates.copy()
    torn[50:60] = torn[210:220] = np.nan
    filled = known(history(torn))
    assert not np.isnan(filled).any()
    assert (filled[50:60] == rates[50 + A_DAY : 60 + A_DAY]).all()
    assert (filled[210:220] == rates[210 - A_DAY : 220 - A_DAY]).all()


def test_what_was_before_a_very_long_gap_is_forgotten() -> None:
    torn = recorded(10 * A_DAY)
    torn[A_DAY : 6 * A_DAY] = np.nan
    assert len(known(history(torn))) == 4 * A_DAY
    assert len(known(History(0, (float("nan"),) * 5))) == 0


@given(st.lists(st.tuples(st.floats(0.5, 1_500), st.floats(0, 1e6)), min_size=1, max_size=60))
def test_whatever_the_readings_all_work_lies_in_the_steps(readings: list[tuple[float, float]]) -> None:
    recorder, at_s, work = Recorder(), MONDAY, 0.0
    recorder.look(at_s, 1, work)
    for passed, came in readings:
        at_s, work = at_s + passed, work + came
        recorder.look(at_s, 1, work)
    first = int(MONDAY // STEP_S)
    over = (int(at_s // STEP_S) - first) if recorder.closed is not None else 0
    assert len(recorder.history) == over
    whole = sum(rate * STEP_S for rate in recorder.history.rates)
    assert whole <= work * (1 + 1e-9) + 1e-6
    if over * STEP_S + MONDAY == at_s:
        assert whole == pytest.approx(work)


def test_readings_seldom_or_often_give_the_same_steps() -> None:
    def recorded_by(period_s: int) -> History:
        recorder = Recorder()
        for at_s in range(0, 3_601, period_s):
            recorder.look(MONDAY + at_s, 1, 7.0 * at_s)
        return recorder.history

    assert recorded_by(1).rates == pytest.approx((7.0,) * 6)
    assert recorded_by(900).rates == pytest.approx((7.0,) * 6)


def test_a_restart_of_the_counts_loses_nothing_and_a_long_absence_is_unknown() -> None:
    recorder = Recorder()
    for at_s, epoch, work in (
        (0, 1, 0.0),
        (300, 1, 300.0),
        (600, 2, 300.0),
        (8_000, 2, 9e9),
        (8_400, 2, 9e9 + 400),
        (9_000, 2, 9e9 + 1_000),
    ):
        recorder.look(MONDAY + at_s, epoch, work)
    rates = recorder.history.rates
    assert rates[0] == pytest.approx(1.0)
    assert np.isnan(rates[1:13]).all()
    assert rates[13:] == pytest.approx((1.0, 1.0))


def test_a_clock_that_is_set_back_does_no_broken_exchanges() -> None:
    recorder = Recorder()
    for at_s, work in ((0, 0.0), (700, 700.0), (650, 750.0), (1_250, 1_350.0)):
        recorder.look(MONDAY + at_s, 1, work)
    assert recorder.history.rates == pytest.approx((1.0, 1.0))


def test_a_recorder_goes_on_where_a_history_ends() -> None:
    recorder = Recorder(history(np.array([5.0, 6.0])))
    for at_s in range(1_200, 2_401, 60):
        recorder.look(MONDAY + at_s, 1, 2.0 * at_s)
    assert recorder.history.first == int(MONDAY // STEP_S)
    assert recorder.history.rates == pytest.approx((5.0, 6.0, 2.0, 2.0))
