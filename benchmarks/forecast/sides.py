"""What is compared: our forecast, naive ones, and two heavier methods of the same library."""

from collections.abc import Callable, Mapping

import numpy as np
from statsmodels.tsa.ar_model import AutoReg
from statsmodels.tsa.holtwinters import ExponentialSmoothing
from statsmodels.tsa.seasonal import MSTL

from autoscaling.forecast.autoregression import foretell
from autoscaling.forecast.history import A_DAY, A_WEEK, FloatArray
from autoscaling.forecast.seasonal import STEPS

Side = Callable[[FloatArray], FloatArray]
"""From the rates so far to those of the next `STEPS` steps; NaN where it cannot tell."""


def _last(rates: FloatArray) -> FloatArray:
    return np.full(STEPS, rates[-1])


def _yesterday(rates: FloatArray) -> FloatArray:
    return rates[len(rates) - A_DAY :][:STEPS]


def _last_week(rates: FloatArray) -> FloatArray:
    return rates[len(rates) - A_WEEK :][:STEPS] if len(rates) >= A_WEEK else np.full(STEPS, np.nan)


def _holt_winters(rates: FloatArray) -> FloatArray:
    model = ExponentialSmoothing(np.sqrt(rates), seasonal="add", seasonal_periods=A_DAY, initialization_method="heuristic")
    return np.asarray(model.fit().forecast(STEPS)) ** 2


def _mstl(rates: FloatArray) -> FloatArray:
    if len(rates) <= 2 * A_DAY:
        return np.full(STEPS, np.nan)
    roots = np.sqrt(rates)
    daily = np.asarray(MSTL(roots, periods=(A_DAY,)).fit().seasonal)
    rest = AutoReg(roots - daily, lags=3).fit().predict(len(roots), len(roots) + STEPS - 1)
    return np.asarray(rest + daily[-A_DAY:][:STEPS]) ** 2


SIDES: Mapping[str, Side] = {
    "raylane": lambda rates: foretell(rates, STEPS)[0],
    "same time yesterday": _yesterday,
    "same time last week": _last_week,
    "last value": _last,
    "Holt-Winters": _holt_winters,
    "MSTL + AR": _mstl,
}
