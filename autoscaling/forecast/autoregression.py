"""The statistics of the forecast: statsmodels' autoregression with the day and the week as Fourier series.

    z(t) = sqrt(rate(t)) = c + sum over k of (a[k] sin + b[k] cos)(2 pi k t / day) + the same for the week + sum over i of phi[i] z(t - i) + e(t)

The root makes the noise of counts even (its variance grows with the rate) and bears nights without any traffic, which a logarithm does not. Back from
z ~ N(m, s^2): E rate = m^2 + s^2, Var rate = 4 m^2 s^2 + 2 s^4. A least-squares fit in milliseconds, with standard errors in closed form, is what a
thread beside a controller can afford every ten minutes. On two weeks of recorded traffic heavier methods of the same library (MSTL with an
autoregression of the rest, Holt-Winters) were no more exact (`benchmarks/forecast`). Hyndman, Athanasopoulos: Forecasting: Principles and Practice,
3rd ed., sections 10.5 and 12.1 (dynamic harmonic regression, for long and several seasons).

One thread of BLAS: matrices this small gain nothing by more, and on two cores that others used too, threads that spun while they waited for each
other took nine times as long (6.9 s instead of 0.8 s for 140 fits), and took that time from the others.

Whoever imports this module waits some seconds for statsmodels and pandas, and pays some 100 MB: only forecasters do.
"""

import warnings

import numpy as np
import pandas as pd
from statsmodels.tsa.ar_model import AutoReg
from statsmodels.tsa.deterministic import DeterministicProcess, Fourier
from threadpoolctl import threadpool_limits

from autoscaling.forecast.history import A_DAY, A_WEEK, FloatArray

LEAST = A_DAY
_LAGS = 3
_DAY_TERMS = 6
_WEEK_TERMS = 6
"""The seventh would be the day's first."""
_MOST = 2.0
"""No forecast is larger than so many times the largest rate seen: an autoregression can run away."""


def foretell(rates: FloatArray, steps: int) -> tuple[FloatArray, FloatArray]:
    """The expected rates of the next `steps` steps and their standard errors, from at least `LEAST` rates without gaps. The week is looked for in two
    weeks and more. Raises ValueError for fewer rates, ArithmeticError or what the library raises where no forecast comes out."""
    if len(rates) < LEAST:
        raise ValueError(f"{len(rates)} rates; allowed: at least {LEAST}, a day of them")
    roots = np.sqrt(rates)
    if np.ptp(roots) <= 1e-9 * max(1.0, float(roots.max())):
        return np.full(steps, float(rates[-1])), np.zeros(steps)
    count = len(roots)
    seasons = [Fourier(A_DAY, _DAY_TERMS), *([Fourier(A_WEEK, _WEEK_TERMS)] if count >= 2 * A_WEEK else [])]
    shape = DeterministicProcess(pd.RangeIndex(count), constant=True, additional_terms=seasons)
    with threadpool_limits(1, "blas"), warnings.catch_warnings():  # a fit that is not unique (rates that hardly ever change) is still a forecast
        warnings.simplefilter("ignore")
        told = AutoReg(roots, lags=_LAGS, trend="n", deterministic=shape).fit().get_prediction(count, count + steps - 1)
    mean, error = np.asarray(told.predicted_mean), np.asarray(told.se_mean)
    if not (np.isfinite(mean).all() and np.isfinite(error).all()):
        raise ArithmeticError("the forecast is not finite")
    mean = np.clip(mean, 0.0, np.sqrt(_MOST * rates.max()))
    return np.minimum(mean**2 + error**2, _MOST * rates.max()), np.sqrt(4 * mean**2 * error**2 + 2 * error**4)
