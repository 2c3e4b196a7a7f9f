"""The seasonal forecast: better than naive ones on a day and a week, honest about its error, silent where it cannot
know, and never an exception."""

import pickle

import numpy as np
import pytest

from autoscaling.forecast.autoregression import foretell
from autoscaling.forecast.history import A_DAY, A_WEEK, STEP_S, FloatArray
from autoscaling.forecast.seasonal import STEPS, ForecastState, SeasonalForecaster
from tests.autoscaling.forecast.made import MONDAY, expected, history, moment, recorded


def errors(forecast: FloatArray, origins: range, rates: FloatArray) -> FloatArray:
    """The absolute errors by origin and step, over the mean rate."""
    came = np.array([rates[origin : origin + STEPS] for origin in origins])
    return np.asarray(np.abs(forecast - came) / rates.mean())


@pytest.mark.parametrize("days", [1, 5, 16])
def test_it_beats_yesterday_and_the_last_value(days: int) -> None:
    rates = recorded((days + 3) * A_DAY, seed=days)
    origins = range(max(days, 1) * A_DAY, (days + 2) * A_DAY, 23)
    ours = errors(np.array([foretell(rates[:origin], STEPS)[0] for origin in origins]), origins, rates)
    yesterday = errors(np.array([rates[origin - A_DAY :][:STEPS] for origin in origins]), origins, rates)
    last = errors(np.array([[rates[origin - 1]] * STEPS for origin in origins]), origins, rates)
    assert ours.mean() < yesterday.mean()
    assert ours.mean() < last.mean()


@pytest.mark.whole
@pytest.mark.parametrize("steps", [A_DAY, 5 * A_DAY, 2 * A_WEEK, 2 * A_WEEK + 77])
def test_the_fit_is_that_of_a_reference_implementation(steps: int) -> None:
    import pandas as pd
    from statsmodels.tsa.ar_model import AutoReg
    from statsmodels.tsa.deterministic import DeterministicProcess, Fourier

    rates = recorded(steps, seed=steps)
    seasons = [Fourier(A_DAY, 6), *([Fourier(A_WEEK, 6)] if steps >= 2 * A_WEEK else [])]
    shape = DeterministicProcess(pd.RangeIndex(steps), constant=True, additional_terms=seasons)
    reported = (
        AutoReg(np.sqrt(rates), lags=3, trend="n", deterministic=shape).fit().get_prediction(steps, steps + STEPS - 1)
    )
    root, spread = np.asarray(reported.predicted_mean), np.asarray(reported.se_mean)
    mean, error = foretell(rates, STEPS)
    assert mean == pytest.approx(root**2 + spread**2, rel=1e-9)
    assert error == pytest.approx(np.sqrt(4 * root**2 * spread**2 + 2 * spread**4), rel=1e-9)


def test_two_weeks_tell_a_weekend_from_a_weekday() -> None:
    steps = 3 * A_WEEK
    rates, mean = recorded(steps), expected(steps)
    friday_night, saturday = 2 * A_WEEK + 5 * A_DAY - 12, 2 * A_WEEK + 5 * A_DAY + 60
    for origin in (friday_night, saturday):
        found = foretell(rates[:origin], STEPS)[0]
        without_weeks = foretell(rates[max(0, origin - 13 * A_DAY) : origin], STEPS)[0]
        came = mean[origin : origin + STEPS]
        assert np.abs(found - came).mean() < np.abs(without_weeks - came).mean()


@pytest.mark.whole
def test_nine_in_ten_lie_within_what_it_says() -> None:
    rates = recorded(8 * A_DAY, seed=3)
    forecaster, work, inside = SeasonalForecaster(history(rates[: 4 * A_DAY])), 0.0, []
    for step in range(4 * A_DAY, 8 * A_DAY - STEPS):
        forecaster.look(moment(MONDAY + step * STEP_S, work))
        work += rates[step] * STEP_S
        found = forecaster.forecast(MONDAY + step * STEP_S)
        assert found is not None
        inside.append(np.abs(rates[step : step + 3] - found.work_per_s[:3]) < 1.645 * np.array(found.error[:3]))
    assert 0.87 < np.mean(inside) < 0.97


def test_it_learns_as_it_looks_and_fits_once_a_step() -> None:
    fits: list[int] = []

    def counted(rates: FloatArray, steps: int) -> tuple[FloatArray, FloatArray]:
        fits.append(len(rates))
        return foretell(rates, steps)

    mean = expected(A_DAY + 4)
    forecaster, work = SeasonalForecaster(foretelling=counted), 0.0
    for step, rate in enumerate(mean):
        for part in range(5):
            at_s = MONDAY + STEP_S * (step + part / 5)
            forecaster.look(moment(at_s, work))
            found = forecaster.forecast(at_s)
            assert (found is None) == (step < A_DAY)
            work += rate * STEP_S / 5
    assert fits == [A_DAY, A_DAY + 1, A_DAY + 2, A_DAY + 3]
    assert forecaster.state is ForecastState.READY
    assert found is not None
    assert found.at_s == MONDAY + STEP_S * (A_DAY + 3)
    assert found.work_per_s[0] == pytest.approx(mean[-1], rel=0.1)


def test_a_history_is_enough_and_a_forecast_ends() -> None:
    forecaster = SeasonalForecaster(history(recorded(2 * A_DAY)))
    now = MONDAY + 2 * A_DAY * STEP_S
    found = forecaster.forecast(now)
    assert found is not None
    assert (found.at_s, found.step_s, len(found.work_per_s), len(found.error)) == (now, STEP_S, STEPS, STEPS)
    assert forecaster.forecast(now + STEPS * STEP_S - 1) is found
    assert forecaster.forecast(now + STEPS * STEP_S) is None


def test_less_than_a_day_is_no_forecast() -> None:
    forecaster = SeasonalForecaster(history(recorded(A_DAY - 1)))
    assert forecaster.forecast(MONDAY + A_DAY * STEP_S) is None
    assert forecaster.state is ForecastState.LEARNING
    assert SeasonalForecaster().forecast(MONDAY) is None
    with pytest.raises(ValueError, match=r"143 rates; allowed: at least 144"):
        foretell(recorded(A_DAY - 1), STEPS)


@pytest.mark.parametrize("rate", [0.0, 5.0])
def test_what_never_changes_goes_on(rate: float) -> None:
    mean, error = foretell(np.full(2 * A_DAY, rate), STEPS)
    assert mean == pytest.approx(np.full(STEPS, rate))
    assert not error.any()


def test_idle_nights_are_no_trouble() -> None:
    rates = np.where(np.arange(4 * A_DAY) % A_DAY < 60, 0.0, recorded(4 * A_DAY))
    mean, error = foretell(rates, STEPS)
    assert (mean >= 0).all()
    assert (mean < 0.3 * rates.max()).all()
    assert np.isfinite(error).all()


def test_a_failing_library_is_a_condition_and_no_exception() -> None:
    fail = [True]

    def broken(rates: FloatArray, steps: int) -> tuple[FloatArray, FloatArray]:
        if fail[0]:
            raise np.linalg.LinAlgError("did not converge")
        return foretell(rates, steps)

    forecaster = SeasonalForecaster(history(recorded(2 * A_DAY)), broken)
    now = MONDAY + 2 * A_DAY * STEP_S
    assert forecaster.forecast(now) is None
    assert forecaster.forecast(now + 1) is None
    assert (forecaster.state, forecaster.failures, forecaster.error) == (
        ForecastState.FAILED,
        1,
        "LinAlgError: did not converge",
    )
    fail[0] = False
    for at_s in (now, now + STEP_S):
        forecaster.look(moment(at_s, at_s - now))
    assert forecaster.forecast(now + STEP_S) is not None
    assert forecaster.state is ForecastState.READY


def test_a_pickled_one_foretells_the_same() -> None:
    one = SeasonalForecaster(history(recorded(2 * A_DAY)))
    now = MONDAY + 2 * A_DAY * STEP_S
    one.forecast(now)
    other: SeasonalForecaster = pickle.loads(pickle.dumps(one))
    for forecaster in (one, other):
        for second in range(0, 1_801, 300):
            forecaster.look(moment(now + second, 800.0 * second))
    assert one.forecast(now + 1_800) == other.forecast(now + 1_800)
    assert one.forecast(now + 1_800) is not None


def test_being_wrong_widens_what_it_says() -> None:
    calm = SeasonalForecaster(history(recorded(3 * A_DAY)))
    now = MONDAY + 3 * A_DAY * STEP_S
    said = calm.forecast(now)
    work = 0.0
    for second in range(0, 18_001, 300):
        calm.look(moment(now + second, work))
        work += 300.0 * (3_000.0 if second // 3_600 % 2 else 50.0)
        later = calm.forecast(now + second)
    assert said is not None
    assert later is not None
    assert later.error[0] / max(later.work_per_s[0], 1.0) > said.error[0] / said.work_per_s[0]
